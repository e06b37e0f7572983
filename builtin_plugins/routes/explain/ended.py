"""The half at the edge: the last requests that ended, with their times, and the last that were
refused, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from builtin_plugins.routes.names import names_of
from core.api import EngineConfig, HttpStats, RequestStats, StepStats

REMEMBERED: Final = 1000
"""Of each."""
LONGEST_REASON: Final = 500
"""Characters: it may repeat what a client wrote."""


class Ended:
    """Remembers nothing unless `--enable-operator-routes` lets somebody ask."""

    def __init__(self, config: EngineConfig) -> None:
        kept = REMEMBERED if config.options.get("enable_operator_routes") else 0
        self._requests: deque[RequestStats] = deque(maxlen=kept)
        self._refused: deque[HttpStats] = deque(maxlen=kept)

    def step(self, stats: StepStats) -> None:
        """Pass steps over."""

    def request(self, stats: RequestStats) -> None:
        """Remember one."""
        self._requests.append(stats)

    def http(self, stats: HttpStats) -> None:
        """Remember one that was refused or broke off, and can be named."""
        if (stats.status >= 400 or stats.error) and stats.request_id:
            self._refused.append(replace(stats, error=stats.error[:LONGEST_REASON]))

    def told(self, request_id: str) -> Iterator[str]:
        """Yield a sentence for each that bears this id, as answers show it."""
        for refused in self._refused:
            if (
                request_id == refused.request_id
                or request_id.partition("-")[2] == refused.request_id
            ):
                reason = refused.error or (
                    "the client left" if refused.status == 499 else "no reason was given"
                )
                yield f"{refused.method} {refused.path or 'of an unknown path'} ended with status {refused.status}: {reason}"
        for stats in self._requests:
            if request_id in names_of(stats.request_id):
                yield _told(stats)


def _told(stats: RequestStats) -> str:
    parts = [
        f"{stats.request_id} has ended ({stats.finish_reason}) after {stats.e2e_s:.3f} s: "
        f"{stats.prompt_tokens} prompt tokens, {stats.cached_tokens} of them cached, "
        f"{stats.generated_tokens} generated"
    ]
    times = (
        ("queued", stats.queue_s),
        ("reading the prompt", stats.prefill_s),
        ("generating", stats.decode_s),
    )
    parts += [f"{name} {seconds:.3f} s" for name, seconds in times if seconds is not None]
    if stats.queue_s is None:
        parts.append("no step ever computed it")
    return "; ".join(parts)
