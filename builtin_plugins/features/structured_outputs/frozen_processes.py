"""Finds busy grammar processes that take no CPU time: they are stopped, or wait for ever."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from builtin_plugins.features.structured_outputs.grammar_handle import GrammarHandle, ProcessState

FROZEN_S: Final = 20.0
"""Time without CPU time after which a busy process counts as frozen."""
_MAX_POLL_S: Final = 0.1
"""Longest counted time between two polls: the time in which this process is stopped is longer."""


class FrozenProcesses:
    """The busy processes of a pool, each with the time since it last took CPU time."""

    def __init__(self) -> None:
        self._polled_s = 0.0
        self._still: dict[GrammarHandle, tuple[float, float]] = {}
        """CPU time at the last poll, and seconds for which it has not changed."""

    def poll(self, handles: Iterable[GrammarHandle]) -> list[GrammarHandle]:
        """Return the frozen ones of all watched handles."""
        now_s = time.monotonic()
        passed_s = min(now_s - self._polled_s, _MAX_POLL_S)
        self._polled_s = now_s
        still = {}
        for handle in handles:
            if not handle.is_busy or handle.state is ProcessState.QUEUED or handle.is_thread:
                continue
            used_s = handle.used_s()
            seen_s, for_s = self._still.get(handle, (used_s, 0.0))
            still[handle] = (used_s, for_s + passed_s if used_s == seen_s else 0.0)
        self._still = still
        return [handle for handle, (_, for_s) in still.items() if for_s > FROZEN_S]
