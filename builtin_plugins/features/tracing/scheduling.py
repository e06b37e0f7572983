"""The scheduler half: when each traced sequence came, got a place in the batch, lost it and ended.

Looks at requests when they come, start and end; at those that run in steps only where detailed
times are asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from builtin_plugins.features.tracing.detail import NAME, Stay, StepTime
from core.api import StepPlan


class Stays:
    """Follows the requests whose feature says where their span is found; what it saw goes back to
    the edge with their end.
    """

    name = NAME

    def __init__(
        self, *, detailed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._detailed = detailed
        self._clock = clock
        self._stays: dict[str, Stay] = {}
        self._placed: dict[int, tuple[Stay, float]] = {}
        """By row: who has it, and since when."""
        self._steps: dict[int, list[Stay]] = {}
        """Steps in flight, and whom of the traced they compute."""
        self._seen: dict[int, tuple[float | None, float | None]] = {}

    def arrived(self, request: Any) -> None:
        """Begin to follow a request that is traced."""
        context = request.features.get(NAME)
        if context is not None:
            self._stays[request.request_id] = Stay(
                context, request.request_id, os.getpid(), self._clock()
            )

    def planned(self, plan: StepPlan) -> bytes | None:
        """Note who gets a place and who has lost it; tell the worker half that somebody wants to
        know its times.
        """
        for row in plan.ended:
            self._leave(row)
        for new in plan.new:
            stay = self._stays.get(new.request_id)
            if stay is not None:
                self._placed[new.row] = stay, self._clock()
        if not self._detailed or not self._placed:
            return None
        rows = {*plan.steady, *plan.rows}
        computed = [stay for row, (stay, _) in self._placed.items() if row in rows]
        if not computed:
            return None
        self._steps[plan.step] = computed
        return plan.step.to_bytes(8, "little")

    def result(self, payload: bytes) -> None:
        """Add the times of a step to those that it computed; of several ranks the slowest counts."""
        time_ = msgspec.msgpack.decode(payload, type=StepTime)
        before = self._seen.get(time_.step, (None, None))
        self._seen = {
            time_.step: (_most(before[0], time_.forward_s), _most(before[1], time_.execute_s))
        }
        forward_s, execute_s = self._seen[time_.step]
        for step in [step for step in self._steps if step < time_.step]:
            del self._steps[step]
        for stay in self._steps.get(time_.step, ()):
            stay.forward_s = _grown(stay.forward_s, before[0], forward_s)
            stay.execute_s = _grown(stay.execute_s, before[1], execute_s)

    def finished(self, request: Any) -> bool:
        """Send what was seen to the edge."""
        stay = self._stays.pop(request.request_id, None)
        if stay is not None:
            for row in [row for row, (each, _) in self._placed.items() if each is stay]:
                self._leave(row)
            stay.preemptions = request.num_preemptions
            request.news[NAME] = msgspec.msgpack.encode(stay)
        return False

    def _leave(self, row: int) -> None:
        stay, since_s = self._placed.pop(row, (None, 0.0))
        if stay is not None:
            stay.places.append((since_s, self._clock()))


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _grown(total: float | None, before: float | None, now: float | None) -> float | None:
    """Return a sum in which a step's time replaces what an earlier rank said of it."""
    return total if now is None else (total or 0.0) + now - (before or 0.0)
