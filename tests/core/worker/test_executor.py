"""The `uni` executor: synchronous and asynchronous steps give the same tokens."""

from __future__ import annotations

import pytest

from core.engine.in_process_executor import UniExecutor
from core.kv import KVManager, plan_layout
from core.scheduler import Scheduler, SchedulerLimits
from core.step import EngineRequest, StepPlan
from core.testing.fake_model import FakeConfig
from core.types import SamplingParams
from tests.core.worker.step_driver import BLOCK, MAX_LEN, settings

REQUESTS = [
    ([5, 9, 30], SamplingParams(temperature=0)),
    ([7] * 20, SamplingParams(temperature=0.8, top_k=10)),
    ([3, 4], SamplingParams(top_p=0.9, repetition_penalty=1.3, logprobs=2)),
    (
        [30, 2, 8, 6, 4, 9],
        SamplingParams(temperature=0, frequency_penalty=0.5, bad_words_token_ids=[[5], [6, 7]]),
    ),
    ([11, 12], SamplingParams(temperature=0, logit_bias={13: 2.0}, min_tokens=3)),
]

ROOM = 200
TIGHT = 40
"""Numbers of KV blocks without and with preemption."""


def run(executor: UniExecutor, num_blocks: int) -> dict[str, list[int]]:
    """Return the tokens of all requests, scheduled at the executor's depth."""
    info = executor.start()
    layout = plan_layout(
        info.layers,
        block_size=BLOCK,
        memory_bytes=0,
        num_blocks=num_blocks,
        max_model_len=MAX_LEN,
        max_num_seqs=4,
    )
    executor.allocate(layout)
    scheduler = Scheduler(SchedulerLimits(16, 4, MAX_LEN), KVManager(layout), depth=executor.depth)
    for i, (prompt, sampling) in enumerate(REQUESTS):
        scheduler.add(
            EngineRequest(
                request_id=f"r{i}",
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=i,
                max_tokens=20 + i,
                arrival_s=i,
            )
        )
    tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(len(REQUESTS))}
    in_flight = 0
    while scheduler.has_work:
        plan = scheduler.schedule() if in_flight < executor.depth else None
        if plan is not None:
            executor.submit(plan)
            in_flight += 1
        elif in_flight:
            for delta in scheduler.update(executor.collect()):
                assert delta.error is None
                tokens[delta.request_id] += delta.token_ids
            in_flight -= 1
    executor.shutdown()
    assert (scheduler.num_preemptions > 0) == (num_blocks < ROOM)
    return tokens


def executor(*, ahead: bool) -> UniExecutor:
    return UniExecutor(
        *settings(max_num_seqs=4, async_scheduling=ahead, model=FakeConfig(window=10))
    )


@pytest.mark.parametrize("num_blocks", [ROOM, TIGHT], ids=["room", "preemption"])
def test_async_scheduling_gives_the_same_tokens(num_blocks: int) -> None:
    inline = executor(ahead=False)
    ahead = executor(ahead=True)
    assert (inline.depth, ahead.depth) == (1, 2)
    tokens = run(inline, num_blocks)
    assert run(ahead, num_blocks) == tokens
    assert [len(found) for found in tokens.values()] == [20, 21, 22, 23, 24]


def test_preemption_changes_no_token() -> None:
    assert run(executor(ahead=False), ROOM) == run(executor(ahead=False), TIGHT)


@pytest.mark.parametrize("ahead", [False, True])
def test_step_error_is_raised_by_collect(ahead: bool) -> None:
    uni = executor(ahead=ahead)
    info = uni.start()
    uni.allocate(
        plan_layout(
            info.layers,
            block_size=BLOCK,
            memory_bytes=0,
            num_blocks=40,
            max_model_len=MAX_LEN,
            max_num_seqs=4,
        )
    )
    uni.submit(StepPlan(0, [], [], [], [2], [0], [1], [0]))  # an empty row
    with pytest.raises(AssertionError, match="row 2"):
        uni.collect()
    uni.submit(StepPlan(1, [], [], [], [], [], [], []))
    assert uni.collect().step == 1
    uni.shutdown()
    uni.shutdown()


@pytest.mark.parametrize("ahead", [False, True])
def test_shutdown_before_start_is_allowed(ahead: bool) -> None:
    uni = executor(ahead=ahead)
    uni.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        uni.start()
