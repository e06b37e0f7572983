"""Engines on two local Ray nodes: the tokens of `mp`, recovery after kill -9, and nothing left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("ray", reason="ray is not installed")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from clusters import (
    actor_pids,
    assert_nothing_is_left,
    kill_raylet,
    placements,
    start_cluster,
)
from ray.cluster_utils import Cluster

from core import AsyncLLM
from core.errors import EngineError
from core.testing import conformance
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.clients.streams import streams, until
from tests.builtin_plugins.executors.test_mp_executor import (
    GREEDY,
    SEEDED,
    generate,
    open_engine,
)

pytestmark = pytest.mark.slow
PLUGINS = ["+engine_ray.plugin", "no:structured_outputs"]
STREAMS = 8
LAYOUTS: Final[Mapping[str, tuple[dict[str, Any], int]]] = {
    "ranks": ({"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, 2),
    "whole engine": ({"tensor_parallel_size": 2, "launcher": "ray"}, 3),
    "engines": (
        {
            "data_parallel_size": 2,
            "data_parallel_backend": "ray",
            "ray_resources": {"CPU": 2},
        },
        2,
    ),
}
"""Settings, and the number of actors."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = start_cluster()
    ray.init(address=running.address, logging_level=logging.WARNING)
    try:
        yield running
    finally:
        ray.shutdown()
        running.shutdown()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("c") / "llama", seed=2)


def settings(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    return {
        "plugins": PLUGINS,
        "ray_address": cluster.address,
        "ray_placement_strategy": "STRICT_SPREAD",
        **fields,
    }


def serving_engine(llama: Path, **fields: Any) -> AsyncLLM:
    memory = {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 25}
    return AsyncLLM(str(llama), num_threads=1, dtype="float32", **memory, **fields)


def test_missing_cluster_is_refused_by_name(llama: Path) -> None:
    with pytest.raises(
        EngineError, match=r"--ray-address: got 127\.0\.0\.1:1; expected a Ray cluster"
    ):
        open_engine(
            llama,
            2,
            plugins=PLUGINS,
            distributed_executor_backend="ray",
            ray_address="127.0.0.1:1",
        )


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_ranks_on_two_nodes_give_the_tokens_of_mp(
    cluster: Cluster, llama: Path, tensor: int, pipeline: int
) -> None:
    with open_engine(llama, tensor, pipeline) as llm:
        expected = [generate(llm, sampling) for sampling in (GREEDY, SEEDED)]
    chosen = settings(cluster, distributed_executor_backend="ray")
    with open_engine(llama, tensor, pipeline, **chosen) as llm:
        assert [generate(llm, sampling) for sampling in (GREEDY, SEEDED)] == expected
        (placement,) = placements()
        assert len(set(placement["bundles_to_node_id"].values())) == 2
        assert len(actor_pids(cluster)) == 2
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_complete_with_the_tokens_of_mp_while_actors_are_killed(
    cluster: Cluster, llama: Path, layout: str
) -> None:
    chosen, num_actors = LAYOUTS[layout]
    sizes = {name: value for name, value in chosen.items() if name.endswith("_size")}
    local = serving_engine(llama, plugins=PLUGINS[1:], **sizes)
    try:
        expected = asyncio.run(streams(local, count=STREAMS))
    finally:
        local.shutdown()

    async def main(engine: AsyncLLM) -> None:
        assert len(actor_pids(cluster)) == num_actors
        nodes = {node for each in placements() for node in each["bundles_to_node_id"].values()}
        assert len(nodes) == 2
        assert await streams(engine, count=STREAMS) == expected
        for number in range(3):
            victim = actor_pids(cluster)[number % num_actors]
            kill = partial(os.kill, victim, signal.SIGKILL)
            assert await streams_while(engine, kill) == expected
            await until(lambda number=number: restarts(engine) > number and is_ready(engine))

    engine = serving_engine(llama, **settings(cluster, **chosen))
    try:
        asyncio.run(main(engine))
    finally:
        engine.shutdown()
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize("layout", ["ranks", "engines"])
def test_streams_complete_while_raylets_are_killed(
    cluster: Cluster, llama: Path, layout: str
) -> None:
    async def main(engine: AsyncLLM) -> None:
        expected = await streams(engine, count=STREAMS)
        for number in range(3):
            assert await streams_while(engine, partial(kill_raylet, cluster)) == expected
            await until(lambda number=number: restarts(engine) > number and is_ready(engine))

    engine = serving_engine(llama, **settings(cluster, **LAYOUTS[layout][0]))
    try:
        asyncio.run(main(engine))
    finally:
        engine.shutdown()
    assert_nothing_is_left(cluster)


async def streams_while(engine: AsyncLLM, kill: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the outputs of streams that run while something is killed."""
    running = asyncio.ensure_future(streams(engine, count=STREAMS))
    await until(lambda: len(engine.open_ids()) >= STREAMS)
    assert not running.done()
    kill()
    return await running


def restarts(engine: AsyncLLM) -> int:
    return engine._client.status().restarts


def is_ready(engine: AsyncLLM) -> bool:
    status = engine._client.status()
    return all(each.state == "ready" for each in status.engines or (status,))


@pytest.mark.parametrize("check", conformance.checks("launchers"), ids=lambda check: check.__name__)
def test_launcher_passes_its_suite(cluster: Cluster, check: Any) -> None:
    for case in conformance.cases("engine_ray.plugin"):
        if case.check is check and case.subject.kind == "launchers":
            case()
