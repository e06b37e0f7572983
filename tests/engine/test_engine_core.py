"""`EngineCore` beyond what `LLM` shows: how many may wait, and who may not be refused."""

from __future__ import annotations

import queue

import pytest
from patience import PATIENCE_S

from core import LLM, AsyncLLM, SamplingParams
from core.engine.core import GATHER_MOST_S, GATHER_SHARE, EngineCore
from core.errors import QueueFull
from core.step import EngineRequest

GREEDY = SamplingParams(max_tokens=3, temperature=0)


def test_a_full_queue_refuses_what_would_have_to_wait():
    with LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=2, max_waiting=1
    ) as llm:
        for request_id in "abc":  # two seats, and one that waits
            llm.add_request(request_id, "text", GREEDY)
        with pytest.raises(QueueFull, match="--max-waiting"):
            llm.add_request("d", "text", GREEDY)
        while llm.has_unfinished_requests():
            llm.step()
        llm.add_request("d", "text", GREEDY)


def test_nobody_may_wait_where_none_may():
    with LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=1, max_waiting=0
    ) as llm:
        llm.add_request("a", "text", GREEDY)
        with pytest.raises(QueueFull, match="no more than 0 may wait"):
            llm.add_request("b", "text", GREEDY)


class Clock:
    """Stands still until somebody moves it."""

    now_s = 1.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def request(name: str, num_tokens: int) -> EngineRequest:
    """Return a request that asks for one token."""
    return EngineRequest(
        request_id=name, prompt_token_ids=[1] * num_tokens, sampling=GREEDY, seed=0, max_tokens=1
    )


def test_a_step_waits_for_who_comes_with_the_first_in_proportion_to_what_it_will_take():
    clock = Clock()
    with LLM("scripted:", max_model_len=512, num_gpu_blocks_override=64) as llm:
        core = llm.core
        core._clock = clock
        core.add([request("a", 100)])
        assert core.patience_s() == 0  # nothing is known yet
        submit = core.executor.submit
        core.executor.submit = lambda plan: (clock.advance(6.4), submit(plan))
        core.step()
        assert core.patience_s() == 0
        core.add([request("b", 10)])
        assert core.patience_s() == pytest.approx(10 * 0.064 * GATHER_SHARE)
        clock.advance(0.009)
        core.add([request("c", 10)])
        assert core.patience_s() == pytest.approx(10 * 0.064 * GATHER_SHARE)
        core.add([request("d", 400)])  # never longer than this after the first
        assert core.patience_s() == pytest.approx(GATHER_MOST_S - 0.009)
        core.step()
        assert core.patience_s() == 0


def test_requests_that_come_one_after_the_other_are_begun_in_one_step(monkeypatch):
    began: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    monkeypatch.setattr(
        EngineCore, "patience_s", lambda core: 60.0 if core.scheduler.num_waiting < 3 else 0.0
    )
    engine = AsyncLLM(
        "scripted:",
        max_model_len=64,
        num_gpu_blocks_override=32,
        disable_frontend_multiprocessing=True,
    )
    try:
        engine._client._core.starting = began.put
        for name in "abc":
            engine._client.add([request(name, 8)]).result(timeout=PATIENCE_S)
        assert began.get(timeout=PATIENCE_S) == ["a", "b", "c"]
    finally:
        engine.shutdown()


def test_what_the_scheduler_holds_is_closed_where_the_workers_do_not_end(monkeypatch):
    llm = LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32)
    closed = []
    shutdown = llm.core.executor.shutdown

    def fail():
        shutdown()
        raise OSError("a worker will not end")

    monkeypatch.setattr(llm.core.executor, "shutdown", fail)
    monkeypatch.setattr(llm.core.scheduler, "close", lambda: closed.append(True))
    with pytest.raises(OSError, match="a worker will not end"):
        llm.shutdown()
    assert closed == [True]


def test_after_a_step_that_failed_as_a_whole_the_numbers_say_that_nothing_runs():
    with LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32) as llm:
        core = llm.core
        seen = []
        core.observe = seen.append
        core.add([request("a", 10)])

        def fail() -> None:
            raise RuntimeError("out of memory")

        collect = core.executor.collect
        core.executor.collect = fail
        assert [delta.finish_reason for delta in core.step().deltas] == ["error"]
        core.executor.collect = collect
        assert not core.has_work
        assert [(stats.num_running, stats.num_waiting, stats.kv_usage) for stats in seen[-1:]] == [
            (0, 0, 0)
        ]
