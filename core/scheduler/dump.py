"""The state of a scheduler as text, for the log line of a failed step or a dead engine.

It holds ids and numbers of requests, and none of their tokens.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from core.scheduler.scheduler import Scheduler

MAX_REQUESTS: Final = 64
"""Number of requests that a text lists: those with a row first."""


def describe(scheduler: Scheduler) -> str:
    """Return the state as JSON, or why it cannot be read."""
    try:
        return f"scheduler: {msgspec.json.encode(_state(scheduler)).decode()}"
    except Exception as error:  # noqa: BLE001 - the line is about another error
        return f"scheduler: cannot be read ({error!r})"


def _state(scheduler: Any) -> dict[str, Any]:
    kv = scheduler.kv
    live = sorted(scheduler._life.live.values(), key=lambda each: (each.row < 0, each.arrival))
    return {
        "issued_step": kv.issued,
        "returned_step": kv.returned,
        "running": scheduler.num_running,
        "waiting": scheduler.num_waiting,
        "parked": scheduler.num_parked,
        "preemptions": scheduler.num_preemptions,
        "kv_usage": round(kv.usage, 4),
        "requests": [_request_state(each) for each in islice(live, MAX_REQUESTS)],
        "unlisted_requests": max(0, len(live) - MAX_REQUESTS),
    }


def _request_state(request: Any) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "row": request.row,
        "prompt_tokens": request.prompt_len,
        "known_tokens": request.num_tokens,
        "planned_tokens": request.planned,
        "cached_tokens": request.num_cached,
        "blocks": [len(table) for table in request.tables],
        "last_step": request.last_step,
        "preemptions": request.num_preemptions,
    }
