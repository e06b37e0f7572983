"""The raylet of the head node is killed: the server goes on as soon as Ray has room again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

pytest.importorskip("ray", reason="ray is not installed")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from clusters import NODE, actor_pids, start_cluster
from ray.cluster_utils import Cluster

from core.testing.checkpoints import make_checkpoint
from tests.system.proofs.test_api_death import Service, is_gone, serving, wait_for
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow
BODY: Final = {"prompt": [5, 9, 30, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a cluster that this process is no part of."""
    running = start_cluster()
    yield running
    running.shutdown()


def answer(service: Service) -> str:
    reply = httpx.post(f"{service.url}/v1/completions", json=BODY, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_server_goes_on_after_the_raylet_of_the_head_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "llama", seed=2)
    flags = [
        *("--plugins", "+engine_ray.plugin"),
        *("--distributed-executor-backend", "ray", "--tensor-parallel-size", "2"),
        *("--ray-address", cluster.address, "--ray-placement-strategy", "STRICT_SPREAD"),
    ]
    with serving(tmp_path, str(model), *flags) as service:
        expected = answer(service)
        old = actor_pids(cluster)
        (raylet,) = cluster.head_node.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        raylet.process.wait()
        cluster.add_node(**NODE)
        assert answer(service) == expected
        assert service.process.poll() is None
        wait_for(lambda: all(map(is_gone, old)))
        assert len(actor_pids(cluster)) == 2
    wait_for(lambda: not actor_pids(cluster))
