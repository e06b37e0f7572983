"""What other kinds and features report to metric sinks, with the promises of `core.api`."""

from builtin_plugins.metric_sinks.pages import merge_pages
from builtin_plugins.metric_sinks.prometheus.memory import process_memory
from builtin_plugins.metric_sinks.providers import (
    GaugeProvider,
    Histogram,
    HistogramProvider,
    InfoProvider,
    MemoryOwners,
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
    "GaugeProvider",
    "Histogram",
    "HistogramProvider",
    "InfoProvider",
    "MemoryOwners",
    "gauge_providers",
    "histogram_providers",
    "info_providers",
    "memory_owners",
    "merge_pages",
    "plugin_faults",
    "plugin_seconds",
    "process_memory",
    "split_labels",
    "with_label",
]
