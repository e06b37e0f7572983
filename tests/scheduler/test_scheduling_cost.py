"""What a step of many rows costs, in calls instead of seconds: as many for 256 rows as for 16,
whoever takes part.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fake_worker import LAYERS, make_request

from builtin_plugins.commands.bench.stub import Guesser, Watcher
from core.kv import KVManager, plan_layout
from core.scheduler import Scheduler, SchedulerLimits
from core.step import StepResult

MOST_CALLS = 150
"""Of Python and C functions in planning and reading a step; about ninety with guesses, thirty
without.
"""


def calls_per_step(rows: int, extensions: list[Any]) -> int:
    """Return the most calls of a step in which nobody comes, ends, or takes blocks."""
    layout = plan_layout(
        LAYERS["full"],
        block_size=64,
        memory_bytes=0,
        num_blocks=40 * rows,
        max_model_len=2048,
        max_num_seqs=rows,
    )
    limits = SchedulerLimits(8192, rows, 2048)
    scheduler = Scheduler(limits, KVManager(layout), extensions=extensions)
    for i in range(rows):
        scheduler.add(make_request(str(i), [1 + i % 7] * 8, 1500, eos_token_ids=(22,)))
    counted: list[int] = []
    for step in range(30):
        count = 0

        def hook(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(hook)
        plan = scheduler.schedule()
        sys.setprofile(None)
        assert plan is not None
        sampled = [*plan.steady, *(plan.rows[i] for i in plan.samples)]
        accepted = [1 + guessed // 2 for guessed in plan.guesses]
        result = StepResult(
            plan.step, sampled, [5] * (sum(accepted) or len(sampled)), accepted=accepted
        )
        sys.setprofile(hook)
        scheduler.update(result)
        sys.setprofile(None)
        if step > 5 and not plan.blocks:
            counted.append(count)
    return max(counted)


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize(
    "make",
    [list, lambda: [Watcher()], lambda: [Guesser(0)], lambda: [Guesser(4)]],
    ids=["alone", "watched", "asked", "guessed"],
)
def test_a_step_of_many_rows_makes_no_more_calls_than_one_of_few(make: Any) -> None:
    few = calls_per_step(16, make())
    many = calls_per_step(256, make())
    assert many <= few + 2
    assert many <= MOST_CALLS
