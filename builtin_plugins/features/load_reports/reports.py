"""Answers a request with `endpoint-load-metrics-format: TEXT` or `JSON` with the engine's load.

The header, its forms and the names in it are those of vLLM and of ORCA, the load reports of Envoy
and Kubernetes' inference gateway. A stream has it too: it is the load when the answer begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from core.api import EngineConfig
from core.api.serving import ServedEngine
from core.api.telemetry import RequestStats, StepStats

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORMAT: Final = b"endpoint-load-metrics-format"
"""Header of a request: TEXT or JSON."""
REPORT: Final = b"endpoint-load-metrics"
"""Header of the answer."""


class LoadSink:
    """Holds the numbers of each engine's last step."""

    def __init__(self, config: EngineConfig) -> None:
        self._last: dict[int, StepStats] = {}

    def step(self, stats: StepStats) -> None:
        """Store the step."""
        self._last[stats.engine] = stats

    def request(self, stats: RequestStats) -> None:
        """Ignore requests."""

    def load(self) -> Mapping[str, float]:
        """Return the load by vLLM's names; of several engines the mean usage."""
        steps = list(self._last.values())
        usage = sum(step.kv_usage for step in steps) / max(len(steps), 1)
        return {
            "kv_cache_usage_perc": round(usage, 6),
            "num_requests_waiting": sum(step.num_waiting for step in steps),
        }


class LoadReports:
    """Route group without routes: it adds the header to answers."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route]:
        """Return no routes."""
        return []

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with load reports."""

        async def reporting(scope: Scope, receive: Receive, send: Send) -> None:
            form = _format_of(scope) if scope["type"] == "http" else ""
            sink = self._sink() if form else None
            if sink is None:
                await app(scope, receive, send)
                return

            async def with_report(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < 400:
                    header = (REPORT, report(form, sink.load()).encode())
                    message = {**message, "headers": [*message.get("headers", ()), header]}
                await send(message)

            await app(scope, receive, with_report)

        return reporting

    def _sink(self) -> LoadSink | None:
        entries = self._engine.sinks.entries
        return next((each.sink for each in entries if isinstance(each.sink, LoadSink)), None)


def report(form: str, load: Mapping[str, float]) -> str:
    """Return the value of the header, in the form TEXT or JSON."""
    if form == "JSON":
        return "JSON " + json.dumps({"named_metrics": load})
    return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())


def _format_of(scope: Scope) -> str:
    """Return TEXT or JSON for a request that has the header, else nothing."""
    value: bytes = next((value for name, value in scope["headers"] if name == FORMAT), b"")
    form = value.decode("latin-1").strip().upper()
    return form if form in ("TEXT", "JSON") else ""
