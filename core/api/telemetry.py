"""Statistics that the engine records, and the contract of metric sinks."""

from core.contracts.telemetry import (
    CallStats,
    HttpStats,
    MetricSink,
    RequestStats,
    StepStats,
    TokenStats,
)

__all__ = ["CallStats", "HttpStats", "MetricSink", "RequestStats", "StepStats", "TokenStats"]
