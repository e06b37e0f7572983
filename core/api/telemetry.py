"""Counters, gauges, histograms and memory owners that plugins provide."""

from core.contracts.telemetry import (
    CallStats,
    Histogram,
    HttpStats,
    MemoryOwners,
    MetricSink,
    RequestStats,
    StepStats,
    TokenStats,
    gauge_providers,
    histogram_providers,
    info_providers,
    memory_owners,
    plugin_faults,
    plugin_seconds,
    split_labels,
    with_label,
)

__all__ = [
    "CallStats",
    "Histogram",
    "HttpStats",
    "MemoryOwners",
    "MetricSink",
    "RequestStats",
    "StepStats",
    "TokenStats",
    "gauge_providers",
    "histogram_providers",
    "info_providers",
    "memory_owners",
    "plugin_faults",
    "plugin_seconds",
    "split_labels",
    "with_label",
]
