"""The parts of tracing in the API process that load without OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builtin_plugins.features.tracing.settings import Detail, check
from core.api import EngineConfig
from core.api.serving import ServedEngine
from core.api.telemetry import RequestStats

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import ASGIApp


class TracedRequests:
    """Route group without routes: it wraps the application in spans of HTTP requests."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> Sequence[Route]:
        """Return no routes."""
        return []

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with a span for each request that has a body."""
        if not self._config.options.get("otlp_traces_endpoint"):
            return app
        # lazy: an optional library
        from builtin_plugins.features.tracing.http_spans import HttpSpans
        from builtin_plugins.features.tracing.tracer import shared_tracer

        return HttpSpans(app, shared_tracer(self._engine.registry, self._config))


class TraceSink:
    """Metric sink that exports a request's span at its end, whatever the finish reason.

    Invalid settings raise `ConfigError` before a model is loaded.
    """

    per_api_server = True

    def __init__(self, config: EngineConfig) -> None:
        endpoint = config.options.get("otlp_traces_endpoint")
        Detail.of(config)  # raises for an unknown name
        if endpoint:
            check(endpoint)

    def request(self, stats: RequestStats) -> None:
        """Export the span of a traced request."""
        trace = stats.extra_fields.get("trace")
        if trace is not None:
            trace.ended(stats)
