"""Ranks on two local Ray nodes: the tokens of `mp`, recovery after kill -9, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

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
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow
PLUGINS = ["+engine_ray.plugin", "no:structured_outputs"]
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}


def start_cluster() -> Cluster:
    """Return a cluster of two nodes; Ray's limit of 30 s for a start is fixed, so try twice."""
    for last in (False, True):
        try:
            cluster = Cluster(initialize_head=True, head_node_args=NODE)
            cluster.add_node(**{**NODE, "include_dashboard": None})
            cluster.wait_for_nodes()
            return cluster
        except Exception as error:  # noqa: BLE001 - Ray raises many
            if last:
                pytest.skip(f"Ray does not start here: {error}")
    raise AssertionError("unreachable")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Return the address of a cluster of two nodes."""
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    running = start_cluster()
    try:
        yield running.address
    finally:
        ray.shutdown()
        running.shutdown()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("c") / "llama", seed=2)


def settings(cluster: str, **fields: Any) -> dict[str, Any]:
    return {
        "plugins": PLUGINS,
        "distributed_executor_backend": "ray",
        "ray_address": cluster,
        "ray_placement_strategy": "STRICT_SPREAD",
        **fields,
    }


def actor_pids() -> list[int]:
    """Return the process ids of the launcher's actors, from the titles that Ray sets."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::Role"):
                found.append(int(folder.name))
    return sorted(found)


def placements() -> list[dict[str, Any]]:
    return [each for each in placement_group_table().values() if each["state"] != "REMOVED"]


def assert_nothing_is_left() -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while actor_pids() or placements():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_missing_cluster_is_refused_by_name(llama: Path) -> None:
    with pytest.raises(
        EngineError, match=r"--ray-address: got 127\.0\.0\.1:1; expected a Ray cluster"
    ):
        open_engine(llama, 2, **settings("127.0.0.1:1"))


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_ranks_on_two_nodes_give_the_tokens_of_mp(
    cluster: str, llama: Path, tensor: int, pipeline: int
) -> None:
    with open_engine(llama, tensor, pipeline) as llm:
        expected = [generate(llm, sampling) for sampling in (GREEDY, SEEDED)]
    with open_engine(llama, tensor, pipeline, **settings(cluster)) as llm:
        assert [generate(llm, sampling) for sampling in (GREEDY, SEEDED)] == expected
        (placement,) = placements()
        assert len(set(placement["bundles_to_node_id"].values())) == 2
        assert len(actor_pids()) == 2
    assert_nothing_is_left()


def test_streams_complete_after_a_rank_was_killed(cluster: str, llama: Path) -> None:
    asyncio.run(kill_ranks(cluster, llama))


async def kill_ranks(cluster: str, llama: Path) -> None:
    engine = AsyncLLM(
        str(llama),
        tensor_parallel_size=2,
        num_threads=1,
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 25,
        **settings(cluster),
    )
    try:
        expected = await streams(engine)
        for restarts in (1, 2, 3):
            os.kill(actor_pids()[0], signal.SIGKILL)
            assert await streams(engine) == expected
            await until(lambda restarts=restarts: engine._client.status().restarts == restarts)
    finally:
        engine.shutdown()
    assert_nothing_is_left()


@pytest.mark.parametrize("check", conformance.checks("launchers"), ids=lambda check: check.__name__)
def test_launcher_passes_its_suite(cluster: str, check: Any) -> None:
    for case in conformance.cases("engine_ray.plugin"):
        if case.check is check and case.subject.kind == "launchers":
            case()
