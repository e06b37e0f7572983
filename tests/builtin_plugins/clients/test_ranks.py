"""Which ranks a server has, and which cores and GPUs each of its engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.clients.binding import (
    device_environment,
    format_cores,
    share_of_cores,
)
from builtin_plugins.clients.ranks import local_ranks, place_here, ranks_here
from core.config import EngineConfig
from core.config.sections import DeviceConfig, ParallelConfig
from core.errors import ConfigError


def config(size: int, **options: Any) -> EngineConfig:
    names = {"external", "hybrid"}
    given = {
        f"data_parallel_{name}_lb" if name in names else f"data_parallel_{name}": value
        for name, value in options.items()
    }
    return EngineConfig(parallel=ParallelConfig(data_parallel_size=size), options=given)


@pytest.mark.parametrize(
    ("size", "options", "ranks", "here"),
    [
        (1, {}, range(1), 1),
        (4, {}, range(4), 4),
        (4, {"size_local": 4}, range(4), 4),
        (4, {"rank": 3}, range(3, 4), 4),
        (4, {"rank": 3, "external": True}, range(3, 4), 4),
        (4, {"rank": 3, "size_local": 1}, range(3, 4), 1),
        (4, {"hybrid": True, "size_local": 2}, range(2), 2),
        (4, {"hybrid": True, "size_local": 2, "start_rank": 2}, range(2, 4), 2),
        (4, {"size_local": 2, "start_rank": 2}, range(2, 4), 2),
        (4, {"hybrid": True, "size_local": 1, "start_rank": 3}, range(3, 4), 1),
    ],
)
def test_mode_decides_the_ranks_of_a_server(
    size: int, options: dict[str, Any], ranks: range, here: int
) -> None:
    found = config(size, **options)
    assert local_ranks(found) == ranks
    assert ranks_here(found) == here
    assert all(0 <= place_here(found, rank) < here for rank in ranks)


@pytest.mark.parametrize(
    ("size", "options", "flag"),
    [
        (4, {"external": True}, "--data-parallel-external-lb"),
        (4, {"rank": 4}, "--data-parallel-rank"),
        (1, {"rank": 1}, "--data-parallel-rank"),
        (4, {"rank": 0, "start_rank": 0}, "--data-parallel-start-rank"),
        (4, {"external": True, "hybrid": True}, "--data-parallel-hybrid-lb"),
        (4, {"rank": 0, "hybrid": True}, "--data-parallel-hybrid-lb"),
        (4, {"hybrid": True}, "--data-parallel-hybrid-lb"),
        (4, {"start_rank": 2}, "--data-parallel-hybrid-lb"),
        (4, {"size_local": 2}, "--data-parallel-size-local"),
        (4, {"size_local": 5}, "--data-parallel-size-local"),
        (4, {"size_local": 2, "start_rank": 3}, "--data-parallel-start-rank"),
        (1, {"backend": "ray"}, "--data-parallel-backend"),
    ],
)
def test_contradicting_flags_are_refused_by_name(
    size: int, options: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag}: got .*; expected "):
        local_ranks(config(size, **options))


def machine(folder: Path, nodes: dict[int, str], siblings: int) -> Path:
    """Write what Linux reports of a machine: cores by node, and hyperthreads per core."""
    cores: set[int] = set()
    for node, cpulist in nodes.items():
        path = folder / f"node/node{node}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(f"{cpulist}\n")
        for run in cpulist.split(","):
            first, _, last = run.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    for core in cores:
        path = folder / f"cpu/cpu{core}/topology"
        path.mkdir(parents=True)
        half = len(cores) // siblings
        threads = sorted({core % half + half * k for k in range(siblings)})
        (path / "thread_siblings_list").write_text(",".join(map(str, threads)))
    return folder


def test_engines_share_cores_node_by_node_and_hyperthreads_stay_together(tmp_path: Path) -> None:
    two_nodes = machine(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, siblings=2)
    halves = [share_of_cores(range(16), i, 2, two_nodes) for i in range(2)]
    assert halves == [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]
    quarters = [share_of_cores(range(16), i, 4, two_nodes) for i in range(4)]
    assert quarters == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]
    for num_engines in range(1, 20):
        shares = [share_of_cores(range(16), i, num_engines, two_nodes) for i in range(num_engines)]
        assert sum(map(len, shares)) == 16
        assert set().union(*shares) == set(range(16))


def test_only_usable_cores_are_shared(tmp_path: Path) -> None:
    assert [share_of_cores({2, 5, 7}, i, 3, tmp_path) for i in range(3)] == [{2}, {5}, {7}]
    assert share_of_cores({2}, 0, 2, tmp_path) | share_of_cores({2}, 1, 2, tmp_path) == {2}
    assert format_cores({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"


def test_each_engine_gets_a_gpu_of_its_own() -> None:
    three = ["0", "1", "2"]
    two = config(2)
    assert device_environment(two, 1, three) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert device_environment(two, 1, ["4", "GPU-a"]) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
    assert device_environment(two, 1, ["0"]) == {}
    assert device_environment(two, 1, []) == {}
    on_cpu = replace(two, device=DeviceConfig(device="cpu"))
    assert device_environment(on_cpu, 1, three) == {}
    on_ray = replace(config(4), options={"launcher": "ray"})
    assert device_environment(on_ray, 1, three) == {}
    with pytest.raises(
        ConfigError, match=r"--data-parallel-size: got 4 engines; expected .* 3 GPU"
    ):
        device_environment(config(4), 0, three)


def test_each_engine_gets_a_gpu_for_each_of_its_ranks() -> None:
    two = config(2)
    two = replace(two, parallel=replace(two.parallel, tensor_parallel_size=2))
    assert device_environment(two, 1, list("0123")) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    with pytest.raises(ConfigError, match=r"got 2 engines of 2 ranks; expected .* 3 GPU"):
        device_environment(two, 0, list("012"))
