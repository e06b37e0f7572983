"""Scheduler cost per step in calls, not seconds: it must not grow from 16 to 256 rows."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from builtin_plugins.commands.bench.noop_executor import Drafter, Watcher
from core.kv import KVManager, plan_layout
from core.scheduler import Scheduler, SchedulerLimits
from core.step import StepResult
from tests.core.scheduler.fake_worker import LAYERS, make_request

MAX_CALLS = 150
"""Python and C calls per step, planning and reading; about ninety with draft tokens, thirty
without.
"""


def calls_per_step(rows: int, extensions: list[Any]) -> int:
    """Return the maximum of calls of a step without arrivals, ends and allocations."""
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
        sampled = [*plan.decode_rows, *(plan.rows[i] for i in plan.samples)]
        accepted = [1 + drafts // 2 for drafts in plan.num_draft_tokens]
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
    [list, lambda: [Watcher()], lambda: [Drafter(0)], lambda: [Drafter(4)]],
    ids=["alone", "watched", "no drafts", "drafts"],
)
def test_calls_per_step_do_not_grow_with_rows(make: Any) -> None:
    few = calls_per_step(16, make())
    many = calls_per_step(256, make())
    assert many <= few + 2
    assert many <= MAX_CALLS
