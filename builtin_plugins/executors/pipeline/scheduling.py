"""The scheduler half of pipeline parallelism: steps in flight compute different rows.

A stage computes one step while the next stage computes the step before. A row needs its last token
first, so each step decodes an equal share of the rows, and a row returns when every stage has had a
step.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from core.api.execution import StepPlan
from core.api.features import RunningRows


class PipelineScheduler:
    """Chooses the rows that a step decodes."""

    name = "pipeline"

    def __init__(self, num_rows: int, stages: int) -> None:
        """`num_rows`: rows of the batch."""
        self._stages: Final = stages
        self._last_steps: Final = np.zeros(num_rows, np.int64)
        """Last step that sampled, by row."""
        self._next_step = 1
        self._has_prompts = False
        """Whether the last step had a prompt that continues."""
        self._steps_ahead = 0
        """Steps in flight in addition to one per stage."""

    def attach(self, scheduler: Any) -> None:
        """Read how many steps the executor has in flight."""
        self._steps_ahead = scheduler.depth - self._stages

    def is_active(self) -> bool:
        """Return whether the executor overlaps the stages."""
        return self._steps_ahead >= 0

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Return 0 tokens for the rows that this step leaves to the next ones.

        It decodes at most an equal share of the rows, first those that have waited longest. A row
        waits until its token is known, or until so many steps are in flight after it that its token
        arrives in time. If all rows wait and no prompt fills the gap, rows with one unknown token
        do not: the first stage then waits for it, but not for the host.
        """
        own = rows.rows
        last_steps = self._last_steps[own]
        num_unknown = rows.planned[own] + 1 - rows.num_tokens[own]
        ready = (num_unknown == 0) | (last_steps <= self._next_step - self._stages)
        if self._steps_ahead and not self._has_prompts and not ready.any():
            ready = num_unknown <= self._steps_ahead
        share = -(-len(own) // self._stages)
        order = np.argsort(np.where(ready, last_steps, self._next_step), kind="stable")
        chosen: npt.NDArray[np.bool_] = np.zeros_like(ready)
        chosen[order[:share]] = True
        return dict.fromkeys(own[~(chosen & ready)].tolist(), 0)

    def planned(self, plan: StepPlan) -> None:
        """Record the rows that a step samples."""
        self._last_steps[plan.decode_rows] = plan.step
        self._last_steps[[plan.rows[index] for index in plan.samples]] = plan.step
        self._has_prompts = len(plan.samples) < len(plan.rows)
        self._next_step = plan.step + 1
