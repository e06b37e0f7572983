"""`LLM.sleep` and `LLM.wake_up`, as in vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from builtin_plugins.routes.operator.sleeping import LEVELS, NAME, TAGS
from core.api import InvalidRequest

EMPTY_S: Final = 60.0
"""As long as blocks may be in use when nobody is served: in a step that is under way, or by tiers
that still store them.
"""
POLL_S: Final = 0.01


def checked_level(level: str) -> bytes:
    """Return a level as the halves read it. Raises `InvalidRequest` for what is none."""
    if level not in LEVELS:
        raise InvalidRequest("level", f"is {' or '.join(LEVELS)}, not {level[:100]!r}.")
    return level.encode()


def checked_tags(tags: Iterable[str]) -> bytes:
    """Return tags as the halves read them, none for all. Raises `InvalidRequest` for what is none."""
    wanted = list(tags)
    if unknown := sorted({*wanted} - {*TAGS}):
        raise InvalidRequest("tags", f"are {' and '.join(TAGS)}, not {unknown[0][:100]!r}.")
    return ",".join(wanted).encode()


def sleep(llm: Any, level: int = 1) -> None:
    """Forget the prefix cache and give memory back: the cache's, at level 2 that of the weights,
    too.

    Requests are refused until `wake_up`. Raises `InvalidRequest` for another level, and while
    requests are unfinished.
    """
    data = checked_level(str(level))
    until_s = time.monotonic() + EMPTY_S
    scheduler = llm.core.scheduler
    if scheduler.num_running or scheduler.num_waiting:
        raise InvalidRequest(
            "level", "cannot be reached while requests are unfinished; end them first."
        )
    while not (llm.reset_prefix_cache() and llm.core.call(f"{NAME}.idle")[0] == b"1"):
        if time.monotonic() > until_s:
            raise InvalidRequest(
                "level",
                f"cannot be reached: blocks were still in use after {EMPTY_S:g} s; try again.",
            )
        llm.core.step()  # what tiers still move
        time.sleep(POLL_S)
    llm.core.call(f"{NAME}.fall", data)


def wake_up(llm: Any, tags: Sequence[str] | None = None) -> None:
    """Have "weights", "kv_cache" or both (None) back; the engine goes on when both are.

    Raises `InvalidRequest` for another tag, and `ModelError` or `PluginError` where the weights
    cannot be read any more: the engine sleeps on.
    """
    data = checked_tags(tags or ())
    llm.core.call(f"{NAME}.wake", data)
    llm.core.call(f"{NAME}.woken", data)
