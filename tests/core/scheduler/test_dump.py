"""The line of a failed step or a dead engine has the state of its scheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from core import LLM, AsyncLLM, SamplingParams
from core.errors import EngineDead
from core.scheduler.dump import MAX_REQUESTS, describe
from core.step import EngineRequest

SETTINGS = {"max_model_len": 64, "num_gpu_blocks_override": 64, "max_num_seqs": 4}
MARK = "scheduler: "
LONG = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0)


def request(request_id: str) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=[77] * 9, sampling=LONG, seed=0, max_tokens=40
    )


def state_in(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    """Return the state of the only line that has one."""
    (text,) = [r.getMessage() for r in caplog.records if MARK in r.getMessage()]
    assert "77, 77" not in text  # no tokens of requests
    found: dict[str, object] = json.loads(text.partition(MARK)[2])
    return found


def test_failed_step_logs_running_and_waiting_requests(caplog: pytest.LogCaptureFixture) -> None:
    with LLM("scripted:", **SETTINGS) as llm:
        core = llm.core
        for number in range(6):
            core.add([request(str(number))])
        core.step()

        def fail() -> None:
            raise RuntimeError("out of memory")

        core.executor.collect = fail  # type: ignore[method-assign, assignment]
        core.step()
        state = state_in(caplog)
        assert (state["running"], state["waiting"]) == (4, 2)
        listed = state["requests"]
        assert isinstance(listed, list)
        assert [each["id"] for each in listed] == list("012345")
        assert [each["row"] >= 0 for each in listed] == [True] * 4 + [False] * 2
        assert {each["prompt_tokens"] for each in listed} == {9}
        assert listed[0]["planned_tokens"] >= 9
        assert listed[0]["blocks"][0] > 0


def test_engine_that_dies_logs_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    engine = AsyncLLM("scripted:", disable_frontend_multiprocessing=True, **SETTINGS)

    async def die() -> None:
        client: Any = engine._client
        core = client._core

        def fail() -> None:
            raise EngineDead("a worker process has ended")

        core.executor.collect = fail
        with pytest.raises(EngineDead):
            async for _ in engine.generate("text", LONG, "mine"):
                pass

    try:
        asyncio.run(die())
    finally:
        engine.shutdown()
    listed = state_in(caplog)["requests"]
    assert isinstance(listed, list)
    assert [each["id"].partition("-")[0] for each in listed] == ["mine"]


def test_state_lists_a_bounded_number_of_requests_and_never_raises() -> None:
    with LLM("scripted:", **SETTINGS) as llm:
        for number in range(MAX_REQUESTS + 5):
            llm.core.add([request(str(number))])
        state = json.loads(describe(llm.core.scheduler).removeprefix(MARK))
        assert (len(state["requests"]), state["unlisted_requests"]) == (MAX_REQUESTS, 5)
    broken: object = object()
    assert describe(broken).startswith("scheduler: cannot be read")  # type: ignore[arg-type]
