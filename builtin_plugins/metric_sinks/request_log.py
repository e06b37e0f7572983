"""`--enable-log-requests`: one line for each request, when it has ended.

Sizes and times; never any text.
"""

from __future__ import annotations

import logging
from typing import Annotated

from core.api import (
    EngineConfig,
    Entry,
    HttpStats,
    Option,
    RequestStats,
    StepStats,
    Within,
    hookimpl,
)

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
        Option(
            "max_log_len",
            Annotated[int, Within(0, 1 << 40)] | None,
            None,
            "Accepted as in vLLM; no text of a request is ever logged.",
        ),
    ]


class RequestLog:
    """Logs requests the engine has had, and HTTP requests that were refused before."""

    def __init__(self, config: EngineConfig) -> None:
        self._wanted = config.observability.enable_log_requests

    def step(self, stats: StepStats) -> None:
        """Pass steps over."""

    def request(self, stats: RequestStats) -> None:
        """Log one request."""
        if self._wanted:
            log.info(
                "request %s: %s, %d prompt tokens (%d cached), %d generated, n %d; queued %s, "
                "first token %s, all %s",
                stats.request_id,
                stats.finish_reason,
                stats.prompt_tokens,
                stats.cached_tokens,
                stats.generated_tokens,
                stats.n,
                _shown(stats.queue_s),
                _shown(stats.ttft_s),
                _shown(stats.e2e_s),
                extra={"request_id": stats.request_id},
            )

    def http(self, stats: HttpStats) -> None:
        """Log one that ended in an error."""
        if self._wanted and stats.status >= 400 and stats.path.startswith("/v1/"):
            log.info(
                "request refused: %s %s, status %d, %s",
                stats.method,
                stats.path,
                stats.status,
                _shown(stats.duration_s),
                extra={"request_id": stats.request_id},
            )


def _shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:.1f} ms"
