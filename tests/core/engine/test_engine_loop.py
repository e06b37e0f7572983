"""`EngineCore`: the waiting queue and the batching window."""

from __future__ import annotations

import queue

import pytest

from core import LLM, AsyncLLM, SamplingParams
from core.engine.loop import BATCHING_SHARE, MAX_BATCHING_S, EngineCore
from core.errors import QueueFull
from core.step import EngineRequest
from tests.timeouts import TIMEOUT_S

GREEDY = SamplingParams(max_tokens=3, temperature=0)


def test_full_queue_refuses_requests():
    with LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=2, max_waiting=1
    ) as llm:
        for request_id in "abc":  # two rows, and one that waits
            llm.add_request(request_id, "text", GREEDY)
        with pytest.raises(QueueFull, match="--max-waiting"):
            llm.add_request("d", "text", GREEDY)
        while llm.has_unfinished_requests():
            llm.step()
        llm.add_request("d", "text", GREEDY)


def test_max_waiting_zero_refuses_waiting_requests():
    with LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=1, max_waiting=0
    ) as llm:
        llm.add_request("a", "text", GREEDY)
        with pytest.raises(QueueFull, match="more than 0 requests would wait"):
            llm.add_request("b", "text", GREEDY)


def test_queued_requests_limit_counts_waiting_and_running_sequences():
    with LLM(
        "scripted:",
        max_model_len=64,
        num_gpu_blocks_override=32,
        max_num_seqs=1,
        max_num_queued_reqs=3,
    ) as llm:
        two = SamplingParams(max_tokens=3, temperature=0, n=2)
        llm.add_request("a", "text", two)
        with pytest.raises(QueueFull, match=r"more than 3 requests .* \(--max-num-queued-reqs\)"):
            llm.add_request("b", "text", two)
        llm.add_request("c", "text", GREEDY)
        with pytest.raises(QueueFull, match="--max-num-queued-reqs"):
            llm.add_request("d", "text", GREEDY)
        while llm.has_unfinished_requests():
            llm.step()
        llm.add_request("d", "text", GREEDY)


def test_queued_tokens_limit_counts_prompts_without_an_output_token():
    with LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_queued_tokens=20
    ) as llm:
        long = {"prompt_token_ids": [1] * 20}
        llm.add_request("a", long, GREEDY)
        with pytest.raises(QueueFull, match=r"20 prompt tokens .* \(--max-num-queued-tokens\)"):
            llm.add_request("b", "text", GREEDY)
        llm.step()
        assert llm.has_unfinished_requests()
        llm.add_request("b", long, GREEDY)  # the first one has its prompt computed


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({"max_num_scheduled_tokens": 8}, 8),
        ({"max_num_scheduled_tokens": 8, "max_num_batched_tokens": 32}, 8),
        ({"max_num_scheduled_tokens": 32, "max_num_batched_tokens": 8}, 8),
    ],
)
def test_scheduled_tokens_lower_the_budget_of_a_step(given, budget):
    with LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32, **given) as llm:
        assert llm.config.scheduler.max_num_batched_tokens == budget


class Clock:
    """A clock that only advances by hand."""

    now_s = 1.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def request(name: str, num_tokens: int) -> EngineRequest:
    """Return a request for one token."""
    return EngineRequest(
        request_id=name, prompt_token_ids=[1] * num_tokens, sampling=GREEDY, seed=0, max_tokens=1
    )


def test_batching_window_is_proportional_to_prefill_time():
    clock = Clock()
    with LLM("scripted:", max_model_len=512, num_gpu_blocks_override=64) as llm:
        core = llm.core
        core._clock = clock
        core.add([request("a", 100)])
        assert core.batching_window_s() == 0  # nothing is known yet
        submit = core.executor.submit
        core.executor.submit = lambda plan: (clock.advance(6.4), submit(plan))
        core.step()
        assert core.batching_window_s() == 0
        core.add([request("b", 10)])
        assert core.batching_window_s() == pytest.approx(10 * 0.064 * BATCHING_SHARE)
        clock.advance(0.009)
        core.add([request("c", 10)])
        assert core.batching_window_s() == pytest.approx(10 * 0.064 * BATCHING_SHARE)
        core.add([request("d", 400)])  # never longer than this after the first
        assert core.batching_window_s() == pytest.approx(MAX_BATCHING_S - 0.009)
        core.step()
        assert core.batching_window_s() == 0


def test_batching_window_starts_requests_in_one_step(monkeypatch):
    began: queue.Queue[list[str]] = queue.Queue()
    monkeypatch.setattr(
        EngineCore,
        "batching_window_s",
        lambda core: 60.0 if core.scheduler.num_waiting < 3 else 0.0,
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
            engine._client.add([request(name, 8)]).result(timeout=TIMEOUT_S)
        assert began.get(timeout=TIMEOUT_S) == ["a", "b", "c"]
    finally:
        engine.shutdown()


def test_scheduler_is_closed_when_worker_shutdown_fails(monkeypatch):
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


def test_stats_after_a_failed_step_report_nothing_running():
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


def test_stats_are_sent_when_a_tier_releases_blocks_after_the_last_step() -> None:
    with LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32) as llm:
        core = llm.core
        seen: list[float] = []
        core.observe = lambda stats: seen.append(stats.kv_usage)
        core.add([request("a", 10)])
        pool = core.scheduler.kv.pools[0]
        blocks = pool.allocate(3)
        while core.has_work:
            core.step()
        assert seen[-1] > 0
        core.scheduler.release = lambda: pool.release(blocks)
        core._call_soon("release")
        core.step()
        assert seen[-1] == 0
