"""Scheduler extension that records when traced sequences arrive, run and end.

It looks at running requests only for detailed step times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from builtin_plugins.features.tracing.messages import BatchResidency, StepTime
from builtin_plugins.features.tracing.settings import NAME
from core.api.execution import StepPlan


class ResidencyTracker:
    """Tracks requests with a trace context, and sends their times to the admission extension."""

    name = NAME

    def __init__(
        self, *, detailed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._detailed = detailed
        self._clock = clock
        self._residencies: dict[str, BatchResidency] = {}
        self._placed: dict[int, tuple[BatchResidency, float]] = {}
        """Residency and start time of the traced sequence, by row."""
        self._steps: dict[int, list[BatchResidency]] = {}
        """Traced sequences that a step computes, by in-flight step."""
        self._step_times: dict[int, tuple[float | None, float | None]] = {}
        """Times of the current step, the largest of the ranks so far."""

    def arrived(self, request: Any) -> None:
        """Start to track a traced request."""
        context = request.features.get(NAME)
        if context is not None:
            self._residencies[request.request_id] = BatchResidency(
                context, request.request_id, os.getpid(), self._clock()
            )

    def planned(self, plan: StepPlan) -> bytes | None:
        """Record rows that enter and leave the batch; request the step's times if needed."""
        for row in plan.ended:
            self._leave(row)
        for new in plan.new:
            residency = self._residencies.get(new.request_id)
            if residency is not None:
                self._placed[new.row] = residency, self._clock()
        if not self._detailed or not self._placed:
            return None
        rows = {*plan.decode_rows, *plan.rows}
        computed = [residency for row, (residency, _) in self._placed.items() if row in rows]
        if not computed:
            return None
        self._steps[plan.step] = computed
        return plan.step.to_bytes(8, "little")

    def result(self, payload: bytes) -> None:
        """Add a step's times to the sequences that it computed; the slowest rank counts."""
        time_ = msgspec.msgpack.decode(payload, type=StepTime)
        before = self._step_times.get(time_.step, (None, None))
        self._step_times = {
            time_.step: (_max(before[0], time_.forward_s), _max(before[1], time_.execute_s))
        }
        forward_s, execute_s = self._step_times[time_.step]
        for step in [step for step in self._steps if step < time_.step]:
            del self._steps[step]
        for residency in self._steps.get(time_.step, ()):
            residency.forward_s = _replace_step(residency.forward_s, before[0], forward_s)
            residency.execute_s = _replace_step(residency.execute_s, before[1], execute_s)

    def finished(self, request: Any) -> bool:
        """Send the times to the admission extension."""
        residency = self._residencies.pop(request.request_id, None)
        if residency is not None:
            for row in [row for row, (each, _) in self._placed.items() if each is residency]:
                self._leave(row)
            residency.preemptions = request.num_preemptions
            request.feature_outputs[NAME] = msgspec.msgpack.encode(residency)
        return False

    def _leave(self, row: int) -> None:
        residency, since_s = self._placed.pop(row, (None, 0.0))
        if residency is not None:
            residency.spans.append((since_s, self._clock()))


def _max(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


def _replace_step(total: float | None, before: float | None, now: float | None) -> float | None:
    """Return a total in which a step's time replaces that of an earlier rank."""
    return total if now is None else (total or 0.0) + now - (before or 0.0)
