"""Faulty and disconnecting clients affect no other request."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from core import LLM, SamplingParams
from core.errors import InvalidRequest
from core.testing.invariants import check_scheduler


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "scripted:", max_model_len=128, num_gpu_blocks_override=40, block_size=4, max_num_seqs=16
    ) as engine:
        yield engine


def assert_nothing_leased(llm: LLM) -> None:
    scheduler = llm.core.scheduler
    check_scheduler(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.kv.usage) == (0, 0, 0)


def test_every_request_finishes_under_oversubscription(llm: LLM) -> None:
    draw = random.Random(1)
    prompts = ["".join(draw.choices("abcdef", k=draw.randint(1, 60))) for _ in range(120)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=64, temperature=0), use_tqdm=False)
    assert [o.outputs[0].text for o in outputs] == prompts
    assert llm.core.scheduler.num_preemptions > 0
    assert_nothing_leased(llm)


def test_oversized_request_is_rejected_at_admission(llm: LLM) -> None:
    with LLM(
        "scripted:", max_model_len=128, num_gpu_blocks_override=40, block_size=4, max_num_seqs=4
    ) as small:
        with pytest.raises(InvalidRequest, match="prompt"):
            small.generate("x" * 200, SamplingParams(max_tokens=4), use_tqdm=False)
        assert_nothing_leased(small)


def test_random_aborts_leave_nothing_leased(llm: LLM) -> None:
    draw = random.Random(2)
    waiting: list[str] = []
    for i in range(1000):
        name = f"abort-{i}"
        llm.add_request(
            name, "y" * draw.randint(1, 60), SamplingParams(max_tokens=60, temperature=0)
        )
        waiting.append(name)
        for _ in range(draw.randint(0, 2)):
            llm.step()
        if draw.random() < 0.8:
            llm.abort(waiting.pop(draw.randrange(len(waiting))))
    llm.abort(waiting)
    while llm.has_unfinished_requests():
        llm.step()
    assert_nothing_leased(llm)


def test_rejected_request_changes_no_other_tokens(llm: LLM) -> None:
    alone = llm.generate(
        "the neighbour", SamplingParams(max_tokens=40, temperature=0), use_tqdm=False
    )[0]
    llm.add_request("n", "the neighbour", SamplingParams(max_tokens=40, temperature=0))
    text = ""
    for bad in (
        {"stop_token_ids": [10**6]},
        {"logit_bias": {10**6: 5.0}},
        {"allowed_token_ids": [10**6]},
        {"logprobs": 10**6},
    ):
        with pytest.raises(InvalidRequest):
            llm.add_request("bad", "hi", SamplingParams(**bad))
        for output in llm.step():
            text = output.outputs[0].text
    while llm.has_unfinished_requests():
        for output in llm.step():
            text = output.outputs[0].text
    assert text == alone.outputs[0].text


def test_request_failing_in_the_model_fails_alone() -> None:
    with LLM(
        "scripted:", max_model_len=128, num_gpu_blocks_override=64, scripted_fail_at_token=5
    ) as engine:
        outputs = engine.generate(
            ["abc", "a longer text that fails"],
            SamplingParams(max_tokens=40, temperature=0),
            use_tqdm=False,
        )
        assert outputs[0].outputs[0].text == "abc"
        assert outputs[1].outputs[0].finish_reason == "error"
        assert outputs[1].error
        assert_nothing_leased(engine)
