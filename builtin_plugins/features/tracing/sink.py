"""The half that hears of ends: a request's span is exported when its figures are known, however it
ended.
"""

from __future__ import annotations

from builtin_plugins.features.tracing.detail import Detail
from builtin_plugins.features.tracing.endpoint import check
from core.api import ConfigError, EngineConfig, RequestStats, StepStats


class TraceSink:
    """Refuses settings that cannot work, before a model is loaded; then hands on what requests
    bring.
    """

    def __init__(self, config: EngineConfig) -> None:
        endpoint = config.options.get("otlp_traces_endpoint")
        detail = Detail.of(config)
        if endpoint:
            check(endpoint)
        elif detail:
            raise ConfigError(
                "--collect-detailed-traces needs an --otlp-traces-endpoint to send them to."
            )

    def step(self, stats: StepStats) -> None:
        """Pass steps over."""

    def request(self, stats: RequestStats) -> None:
        """Export the span of one that is traced."""
        trace = stats.shown.get("trace")
        if trace is not None:
            trace.ended(stats)
