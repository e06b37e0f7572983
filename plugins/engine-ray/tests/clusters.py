"""Local Ray clusters of two nodes, and what engines leave on them."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from tests.timeouts import TIMEOUT_S

NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}
SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Ray's settings for a quick discovery of dead nodes."""


def start_cluster() -> Cluster:
    """Return a cluster of two nodes; Ray's limit of 30 s for a start is fixed, so try twice."""
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    head = {**NODE, "include_dashboard": False, "_system_config": SYSTEM}
    for last in (False, True):
        try:
            cluster = Cluster(initialize_head=True, head_node_args=head)
            cluster.add_node(**NODE)
            cluster.wait_for_nodes()
            return cluster
        except Exception as error:  # noqa: BLE001 - Ray raises many
            if last:
                pytest.skip(f"Ray does not start here: {error}")
    raise AssertionError("unreachable")


def kill_raylet(cluster: Cluster) -> None:
    """Kill the raylet of the node that is not the head, and start another node."""
    (node,) = cluster.worker_nodes
    (raylet,) = node.all_processes["raylet"]
    os.kill(raylet.process.pid, signal.SIGKILL)
    raylet.process.wait()
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE)


def actor_pids(cluster: Cluster) -> list[int]:
    """Return the process ids of the launcher's actors, from the titles that Ray sets.

    Other clusters of this machine have other folders for the outputs of their processes.
    """
    session = cluster.head_node.get_session_dir_path()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_actor = (folder / "cmdline").read_bytes().startswith(b"ray::Role")
            if is_actor and os.readlink(folder / "fd" / "1").startswith(f"{session}/"):
                found.append(int(folder.name))
    return sorted(found)


def placements() -> list[dict[str, Any]]:
    """Return the placement groups that hold resources or wait for some."""
    return [each for each in placement_group_table().values() if each["state"] != "REMOVED"]


def assert_nothing_is_left(cluster: Cluster) -> None:
    """Wait until no actor process and no placement group is left."""
    until_s = time.monotonic() + TIMEOUT_S
    while actor_pids(cluster) or placements():
        assert time.monotonic() < until_s, f"left: {actor_pids(cluster)}, {placements()}"
        time.sleep(0.1)
