"""Counters equal the clients' view after a known workload."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from builtin_plugins.runners.generate.sampler import Sampler
from core import AsyncLLM, SamplingParams
from core.errors import NON_FINITE, InvalidRequest
from core.frontend.metrics import SinkHealth
from core.types import RequestOutput, RequestOutputKind
from tests.timeouts import TIMEOUT_S

WORKLOAD: list[tuple[str, dict[str, Any]]] = [
    ("the first of them all, long enough for blocks", {}),
    ("the first of them all, long enough for blocks", {}),
    ("cut", {"max_tokens": 2}),
    ("twice the same", {"n": 2, "seed": 1}),
    ("until d comes", {"stop": ["d"]}),
    ("0123456789" * 6, {"max_tokens": 40, "ignore_eos": True}),
]


@pytest.fixture(params=["here", "apart"])
def engine(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(
        "scripted:",
        max_model_len=256,
        num_gpu_blocks_override=300,
        block_size=4,
        disable_frontend_multiprocessing=request.param == "here",
        structured_outputs_config={"warm_up": False},
    )
    yield engine
    engine.shutdown()


ONCE_APART = pytest.mark.parametrize(
    "engine", ["here", pytest.param("apart", marks=pytest.mark.slow)], indirect=True
)
"""Options for an engine in this process; other tests cover separate processes."""


class Counts:
    """Return the values of a scrape, by series."""

    def __init__(self, engine: AsyncLLM) -> None:
        sink: Any = next(entry.sink for entry in engine.sinks.entries if entry.name == "prometheus")
        text = sink.expose(engine.health())[0].decode()
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            s.value
            for s in self._samples
            if s.name == f"engine_{name}" and labels.items() <= s.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


async def last(engine: AsyncLLM, prompt: str, name: str, **params: Any) -> RequestOutput:
    final = None
    async for output in engine.generate(
        prompt, SamplingParams(**{"max_tokens": 100, **params}), name
    ):
        final = output
    assert final is not None
    return final


async def settled(engine: AsyncLLM) -> None:
    """Wait for the statistics of the last step, which may have been planned ahead."""
    async with asyncio.timeout(TIMEOUT_S):
        while (
            engine.health()["running"]
            or engine.health()["waiting"]
            or any(stats.kv_usage for stats in engine._last_stats.values())
        ):
            await asyncio.sleep(0.005)


async def run_workload(engine: AsyncLLM) -> list[RequestOutput]:
    outputs = [
        await last(engine, prompt, str(i), **params) for i, (prompt, params) in enumerate(WORKLOAD)
    ]
    with pytest.raises(InvalidRequest):
        await last(engine, "x" * 500, "refused")
    await settled(engine)
    return outputs


def test_counters_match_client_view(engine: AsyncLLM) -> None:
    outputs = asyncio.run(run_workload(engine))
    count = Counts(engine)
    sequences = [completion for output in outputs for completion in output.outputs]
    prompts = [len(output.prompt_token_ids or ()) for output in outputs]
    cached = [output.num_cached_tokens or 0 for output in outputs]
    generated = [len(sequence.token_ids) for sequence in sequences]
    assert max(cached) > 0

    reasons = [output.outputs[0].finish_reason for output in outputs]
    for reason in ("stop", "length", "abort", "error"):
        assert count("request_success_total", finished_reason=reason) == reasons.count(reason)
    assert count("prompt_tokens_total") == sum(prompts)
    assert count("prompt_tokens_cached_total") == sum(cached)
    assert count("prompt_tokens_by_source_total", source="local_cache_hit") == sum(cached)
    assert count("prompt_tokens_by_source_total", source="local_compute") == sum(prompts) - sum(
        cached
    )
    assert count("generation_tokens_total") == sum(generated)
    assert count("prefix_cache_queries_total") >= sum(prompts)
    assert count("prefix_cache_hits_total") >= sum(cached)
    assert count("num_preemptions_total") == count("restarts_total") == 0

    for name in (
        "time_to_first_token",
        "e2e_request_latency",
        "request_queue_time",
        "request_prefill_time",
    ):
        assert count(f"{name}_seconds_count") == len(outputs)
    assert count("inter_token_latency_seconds_count") == sum(generated) - len(sequences)
    assert count("request_prompt_tokens_sum") == sum(prompts)
    assert count("request_prefill_kv_computed_tokens_sum") == sum(prompts) - sum(cached)
    assert count("request_generation_tokens_sum") == sum(generated)
    assert count("request_params_n_sum") == sum(len(output.outputs) for output in outputs)
    assert count("request_params_max_tokens_sum") == sum(
        params.get("max_tokens", 100) for _, params in WORKLOAD
    )
    assert count("request_max_num_generation_tokens_sum") == sum(
        max(len(sequence.token_ids) for sequence in output.outputs) for output in outputs
    )
    parts = [count(f"request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(count("e2e_request_latency_seconds_sum"))
    assert (
        count("step_time_seconds_count") == count("iteration_tokens_total_count") > max(generated)
    )
    assert (
        count("num_requests_running")
        == count("num_requests_waiting")
        == count("requests_open")
        == 0
    )
    assert count("kv_cache_usage_perc") == 0
    assert count("ready") == 1
    assert count("cache_config_info", block_size="4", num_gpu_blocks="300") == 1


@pytest.mark.parametrize("engine", ["here"], indirect=True)
def test_request_with_nan_logits_fails_and_is_counted(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = Sampler._logits

    def nan_logits(*arguments: Any) -> torch.Tensor:
        return logits(*arguments).fill_(float("nan"))

    async def run() -> None:
        await last(engine, "abc", "before")
        with monkeypatch.context() as patch:
            patch.setattr(Sampler, "_logits", nan_logits)
            bad = await last(engine, "abc", "bad")
        assert bad.error == NON_FINITE
        await last(engine, "abc", "after")

    asyncio.run(run())
    count = Counts(engine)
    assert count("corrupted_requests_total") == 1
    assert count("request_success_total", finished_reason="error") == 1
    assert count("request_success_total", finished_reason="stop") == 2


@ONCE_APART
def test_computed_positions_are_counted_once(engine: AsyncLLM) -> None:
    """Without a cache a sequence computes its prompt and all tokens except the last."""
    prompts = ["abc", "defgh"]
    outputs = asyncio.run(_all(engine, prompts))
    sizes = [len(o.prompt_token_ids or ()) + len(o.outputs[0].token_ids) - 1 for o in outputs]
    assert Counts(engine)("iteration_tokens_total_sum") == sum(sizes)


async def _all(engine: AsyncLLM, prompts: list[str]) -> list[RequestOutput]:
    outputs = [
        await last(engine, prompt, prompt, skip_reading_prefix_cache=True) for prompt in prompts
    ]
    await settled(engine)
    return outputs


def test_client_disconnect_counts_as_abort(engine: AsyncLLM) -> None:
    async def leave() -> int:
        seen = 0
        params = SamplingParams(
            max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        stream: Any = engine.generate("x" * 20, params, "leaves")
        async with contextlib.aclosing(stream) as outputs:
            async for output in outputs:
                seen += len(output.outputs[0].token_ids)
                if seen >= 5:
                    break
        await settled(engine)
        return seen

    seen = asyncio.run(leave())
    count = Counts(engine)
    assert count("request_success_total", finished_reason="abort") == 1
    assert seen <= count("generation_tokens_total") == count("request_generation_tokens_sum") < 200
    assert count("request_success_total", finished_reason="stop") == 0


def test_preemptions_are_counted() -> None:
    engine = AsyncLLM(
        "scripted:",
        max_model_len=64,
        num_gpu_blocks_override=20,
        block_size=4,
        disable_frontend_multiprocessing=True,
        structured_outputs_config={"warm_up": False},
    )

    async def crowd() -> None:
        await asyncio.gather(
            *(last(engine, f"prompt number {i} is this long", str(i)) for i in range(12))
        )

    try:
        asyncio.run(crowd())
        client: Any = engine._client
        assert Counts(engine)("num_preemptions_total") == client._core.scheduler.num_preemptions > 0
    finally:
        engine.shutdown()


def test_restart_is_counted_without_duplicate_tokens() -> None:
    engine = AsyncLLM(
        "scripted:",
        max_model_len=256,
        block_size=4,
        scripted_tokens_per_second=200,
        structured_outputs_config={"warm_up": False},
    )
    text = "0123456789" * 10

    async def killed() -> RequestOutput:
        task = asyncio.ensure_future(last(engine, text, "survivor", max_tokens=200))
        while Counts(engine)("generation_tokens_total") < 10:
            await asyncio.sleep(0.01)
        client: Any = engine._client
        client.child.kill()
        return await asyncio.wait_for(task, TIMEOUT_S)

    try:
        output = asyncio.run(killed())
        count = Counts(engine)
        assert output.outputs[0].text == text
        assert count("restarts_total") == 1
        assert count("generation_tokens_total") == len(output.outputs[0].token_ids)
        assert count("prompt_tokens_total") == len(output.prompt_token_ids or ())
        assert (
            count("request_queue_time_seconds_count")
            == count("time_to_first_token_seconds_count")
            == 1
        )
    finally:
        engine.shutdown()


@ONCE_APART
def test_sink_faults_are_counted(engine: AsyncLLM) -> None:
    class Broken:
        def step(self, stats: Any) -> None:
            raise ZeroDivisionError

        def request(self, stats: Any) -> None:
            return

    engine.sinks.entries.append(SinkHealth("broken", "a plugin", Broken()))
    asyncio.run(_all(engine, ["some text"]))
    assert Counts(engine)("sink_faults_total", sink="broken") == 5  # then it was quarantined
