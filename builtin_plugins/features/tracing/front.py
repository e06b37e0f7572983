"""Around the server: an HTTP request's span, below the one that its `traceparent` header names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Route
from starlette.types import ASGIApp

from core.api import EngineConfig


class TracedRequests:
    """A route group without routes: what it has stands around those of others."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> Sequence[Route]:
        """Return none."""
        return []

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with a span for each request that has a body."""
        if not self._config.options.get("otlp_traces_endpoint"):
            return app
        from builtin_plugins.features.tracing.served import Traced  # lazy: an optional library
        from builtin_plugins.features.tracing.tracer import tracer_of

        return Traced(app, tracer_of(self._engine.registry, self._config))
