"""Metrics by engine over a client of several engines."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core import AsyncLLM
from core.api.telemetry import StepStats
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.clients.data_parallel.engines import child, running
from tests.builtin_plugins.clients.streams import collect, streams, until
from tests.timeouts import TIMEOUT_S

COUNTED = (
    "engine_prompt_tokens_total",
    "engine_prompt_tokens_by_source_total",
    "engine_generation_tokens_total",
    "engine_request_success_total",
    "engine_request_prompt_tokens_bucket",
    "engine_request_generation_tokens_sum",
    "engine_request_params_n_count",
    "engine_time_to_first_token_seconds_count",
    "engine_prefix_cache_queries_total",
    "engine_prefix_cache_hits_total",
)
"""Metrics that requests alone decide, and no clock."""
Values = dict[tuple[str, ...], dict[str, float]]


def values(engine: AsyncLLM) -> Values:
    """Return the value of each engine, by metric and other labels."""
    (entry,) = [each for each in engine.sinks.entries if each.name == "prometheus"]
    body, _ = entry.sink.expose(engine.health())  # type: ignore[attr-defined]
    found: Values = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.name in COUNTED:
                labels = dict(sample.labels)
                rank = labels.pop("engine")
                key = sample.name, *(f"{name}={labels[name]}" for name in sorted(labels))
                found.setdefault(key, {})[rank] = sample.value
    return found


@pytest.mark.slow
def test_metrics_of_two_engines_add_up_to_those_of_one(tmp_path: Path) -> None:
    model = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))

    async def main(engine: AsyncLLM) -> Values:
        await streams(engine, 1, 12)
        await until(lambda: engine.health()["running"] == 0)
        return values(engine)

    found: list[Values] = []
    for size in (1, 2):
        with running(model, size) as engine:
            found.append(asyncio.run(main(engine)))
    one, two = found
    assert {rank for each in one.values() for rank in each} == {"0"}
    assert {key: sum(each.values()) for key, each in two.items()} == {
        key: each["0"] for key, each in one.items()
    }
    ended = two["engine_request_success_total", "finished_reason=length", f"model_name={model}"]
    assert ended["0"] > 0
    assert ended["1"] > 0


@pytest.mark.slow
def test_request_that_moves_counts_for_the_engine_that_ends_it(tmp_path: Path) -> None:
    model = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))

    async def main(engine: AsyncLLM) -> None:
        tasks = [asyncio.ensure_future(collect(engine, i)) for i in (1, 3, 5, 7)]
        await until(lambda: len(engine._client._routed) == 4 and not engine._client._waiting)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        supervised = engine._client.engines[0].supervised
        supervised._pause = lambda: asyncio.run_coroutine_threadsafe(ended.wait(), loop).result()
        os.kill(child(engine, 0).pid, signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
        ended.set()
        key = "engine_request_success_total", "finished_reason=length", f"model_name={model}"
        assert values(engine)[key] == {"0": 0.0, "1": 4.0}
        generated = values(engine)["engine_generation_tokens_total", f"model_name={model}"]
        assert sum(generated.values()) == sum(120 + i for i in (1, 3, 5, 7))
        assert generated["0"] > 0

    with running(model) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_metric_sinks_get_one_step_at_a_time(tmp_path: Path) -> None:
    model = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))
    engines: list[int] = []
    inside = threading.Semaphore()

    class Sink:
        def step(self, stats: StepStats) -> None:
            assert inside.acquire(blocking=False), "another engine's step is being recorded"
            engines.append(stats.engine)
            time.sleep(0.001)
            inside.release()

    with running(model) as engine:
        health: Any = engine.sinks.entries[0]
        sink = type(health)("one at a time", "tests", Sink())
        engine.sinks.entries.append(sink)  # type: ignore[attr-defined]
        asyncio.run(streams(engine, 1, 8))
        assert sink.faults == 0
        assert set(engines) == {0, 1}
