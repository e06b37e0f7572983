"""Sums over GPU ranks: in peer memory or by the backend, chosen by size, on a fake device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed import distributed_c10d

from builtin_plugins.platforms.cuda.peer_memory import (
    MAX_BYTES,
    ONE_SHOT_BYTES,
    is_one_host,
    registered_group,
    shots,
)
from builtin_plugins.platforms.cuda.process_group import DeviceGroup
from core.config import EngineConfig
from core.models.layers.parallel import Group, gloo
from tests.builtin_plugins.platforms.fake_gpu import FakeGpu, FakePeerMemory

Connect = Callable[[Any], FakePeerMemory | None]


def on_ranks(folder: Path, run: Callable[[Any, int], Any]) -> list[Any]:
    """Call a function with a store and a rank, on two ranks."""

    def on_rank(rank: int) -> Any:
        return run(torch.distributed.FileStore(str(folder / "ranks"), 2), rank)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(on_rank, range(2)))


def sums_of(folder: Path, connect: Connect, shape: tuple[int, ...]) -> list[Any]:
    """Return what two ranks sum to, and how often they summed in peer memory."""

    def run(store: Any, rank: int) -> Any:
        backend = gloo(store, rank, 2)
        memory = connect(backend)
        group = Group(DeviceGroup(backend, 2, lambda: memory), 2, rank)
        found = group.all_reduce(torch.full(shape, rank + 1.0))
        assert torch.equal(found, torch.full(shape, 3.0))
        return [] if memory is None else memory.sums

    return on_ranks(folder, run)


@pytest.mark.parametrize(
    ("nbytes", "size", "expected"),
    [
        (16, 2, 1),
        (MAX_BYTES, 2, 1),
        (MAX_BYTES + 16, 2, 0),
        (ONE_SHOT_BYTES[4], 4, 1),
        (ONE_SHOT_BYTES[4] + 16, 4, 2),
        (ONE_SHOT_BYTES[8], 8, 1),
        (MAX_BYTES, 8, 2),
        (16, 3, 0),
        (24, 2, 0),
        (0, 2, 0),
    ],
)
def test_size_and_ranks_choose_the_sum(nbytes: int, size: int, expected: int) -> None:
    assert shots(torch.empty(nbytes // 4, dtype=torch.float32), size) == expected


def test_unsupported_dtypes_and_addresses_are_summed_by_the_backend() -> None:
    assert shots(torch.empty(64, dtype=torch.float16), 2) == 0
    assert shots(torch.empty(65)[1:], 2) == 0
    assert shots(torch.empty(68)[4:], 2) == 1


def test_small_tensors_are_summed_in_peer_memory(tmp_path: Path) -> None:
    assert sums_of(tmp_path, FakePeerMemory, (2, 8)) == [[(1, 64)], [(1, 64)]]


def test_odd_tensors_are_summed_by_the_backend(tmp_path: Path) -> None:
    assert sums_of(tmp_path, FakePeerMemory, (3,)) == [[], []]


def test_peer_memory_is_used_only_if_all_ranks_have_it(tmp_path: Path) -> None:
    def run(store: Any, rank: int) -> Any:
        backend = gloo(store, rank, 2)
        memory = FakePeerMemory(backend)

        def connect() -> FakePeerMemory:
            if rank:
                raise RuntimeError("devices do not see each other's memory")
            return memory

        group = Group(DeviceGroup(backend, 2, connect), 2, rank)
        return group.all_reduce(torch.ones(8)).tolist(), memory.sums

    assert on_ranks(tmp_path, run) == [([2.0] * 8, [])] * 2


@pytest.mark.parametrize("is_disabled", [False, True])
def test_disable_custom_all_reduce_leaves_sums_to_the_backend(
    is_disabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakePeerMemory] = []

    def peer_memory(self: FakeGpu, backend: Any, *unused: Any) -> FakePeerMemory:
        made.append(FakePeerMemory(backend))
        return made[-1]

    monkeypatch.setattr(FakeGpu, "_peer_memory", peer_memory)
    config = EngineConfig()
    if is_disabled:
        config = replace(config, options={"disable_custom_all_reduce": True})

    def run(store: Any, rank: int) -> Any:
        platform = FakeGpu()
        platform.start(config)
        group = Group(platform.process_group(store, rank, 2), 2, rank)
        return group.all_reduce(torch.ones(8)).tolist()

    assert on_ranks(tmp_path, run) == [[2.0] * 8] * 2
    assert [memory.sums for memory in made] == ([] if is_disabled else [[(1, 32)]] * 2)


def test_ranks_of_one_host_find_that_out(tmp_path: Path) -> None:
    assert on_ranks(tmp_path, lambda store, rank: is_one_host(store, rank, 2)) == [True, True]


def test_ranks_are_registered_by_name_for_operations_of_torch(tmp_path: Path) -> None:
    def run(store: Any, rank: int) -> Any:
        return registered_group(gloo(store, rank, 2), store, rank, 2, "cpu")

    for rank, made in enumerate(on_ranks(tmp_path, run)):
        group = distributed_c10d._resolve_process_group(made.group_name)
        assert (group.rank(), group.size()) == (rank, 2)
        distributed_c10d._unregister_process_group(made.group_name)
