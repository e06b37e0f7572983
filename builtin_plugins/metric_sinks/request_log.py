"""`--enable-log-requests`: one log line per ended request, with sizes and times but no text."""

from __future__ import annotations

import logging

from core.api import EngineConfig, Entry, Option, hookimpl
from core.api.telemetry import HttpStats, RequestStats

log = logging.getLogger(__name__)


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [Entry("request_log", RequestLog, "one log line per request (--enable-log-requests)")]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "disable_log_requests",
            bool,
            False,
            "Former spelling of the default: requests are not logged.",
        ),
    ]


class RequestLog:
    """Logs ended requests, and HTTP requests that were refused."""

    def __init__(self, config: EngineConfig) -> None:
        self._is_on = config.observability.enable_log_requests

    def request(self, stats: RequestStats) -> None:
        """Log an ended request."""
        if self._is_on:
            log.info(
                "request %s: %s, %d prompt tokens (%d cached), %d generated, n %d; queued %s, "
                "first token %s, all %s",
                stats.request_id,
                stats.finish_reason,
                stats.prompt_tokens,
                stats.cached_tokens,
                stats.generated_tokens,
                stats.n,
                _milliseconds(stats.queue_s),
                _milliseconds(stats.ttft_s),
                _milliseconds(stats.e2e_s),
                extra={"request_id": stats.request_id},
            )

    def http(self, stats: HttpStats) -> None:
        """Log a refused request."""
        if self._is_on and stats.status >= 400 and stats.path.startswith("/v1/"):
            log.info(
                "request refused: %s %s, status %d, %s",
                stats.method,
                stats.path,
                stats.status,
                _milliseconds(stats.duration_s),
                extra={"request_id": stats.request_id},
            )


def _milliseconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:.1f} ms"
