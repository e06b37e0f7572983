"""Hidden states between pipeline stages: any size arrives in order, small ones ahead of time."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from core.models.layers.parallel import EAGER_BUFFERS, EAGER_BYTES, Chain, gloo, meet

LIMIT = EAGER_BYTES // 4
"""Numbers of the largest small tensor."""


@pytest.fixture
def stages(tmp_path: Path) -> tuple[Chain, Chain]:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda rank: meet(str(tmp_path), rank, 1, 2)[1], range(2)))
    first, second = found
    assert isinstance(first, Chain)
    assert isinstance(second, Chain)
    return first, second


def numbers(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_tensors_of_any_size_arrive_in_order(stages: tuple[Chain, Chain]) -> None:
    first, second = stages
    choose = random.Random(7)
    sizes = [choose.choice((1, 64, LIMIT, LIMIT + 1, 3 * LIMIT)) for _ in range(24)]
    sizes += [LIMIT, LIMIT + 1]

    def send() -> None:
        for seed, size in enumerate(sizes):
            first.send(numbers(size, seed))

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        for seed, size in enumerate(sizes):
            assert torch.equal(second.receive(torch.empty(size)), numbers(size, seed))
        sending.result()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_small_tensors_keep_their_shape_and_numbers(
    stages: tuple[Chain, Chain], dtype: torch.dtype
) -> None:
    first, second = stages
    x = numbers(12, 1).to(dtype).view(3, 4)
    first.send(x.T)
    assert torch.equal(second.receive(torch.empty(4, 3, dtype=dtype)), x.T)


def test_small_tensors_arrive_before_the_next_stage_waits(stages: tuple[Chain, Chain]) -> None:
    first, second = stages
    for seed in range(EAGER_BUFFERS):
        first.send(numbers(64, seed))
    for work in first._small_hidden._works:
        work.wait()  # a rendezvous would wait for `receive`
    for seed in range(EAGER_BUFFERS):
        assert torch.equal(second.receive(torch.empty(64)), numbers(64, seed))


def test_groups_other_than_gloo_send_when_the_next_stage_waits(
    stages: tuple[Chain, Chain],
) -> None:
    class Group:
        """A group without Gloo's receives of a smaller tensor."""

        def __init__(self, stage: Chain) -> None:
            self._group = stage._group

        def __getattr__(self, name: str) -> Any:
            return getattr(self._group, name)

    first, second = (Chain(Group(stage), 2, rank) for rank, stage in enumerate(stages))
    assert not hasattr(second, "_inbox")
    first.send(numbers(64, 1))
    assert torch.equal(second.receive(torch.empty(64)), numbers(64, 1))
    assert first._small_hidden._works == []


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 3)])
def test_groups_other_than_gloo_connect_while_the_store_exists(
    tensor: int, pipeline: int, tmp_path: Path
) -> None:
    """NCCL connects two ranks with their first transfer, and the store is gone after `meet`."""

    class LateGroup:
        """A group that counts its transfers."""

        def __init__(self, store: Any, rank: int, size: int) -> None:
            self._group = gloo(store, rank, size)
            self.peers: list[int] = []

        def allreduce(self, tensors: list[torch.Tensor]) -> Any:
            self.peers.append(-1)
            return self._group.allreduce(tensors)

        def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> None:
            self.peers.append(rank)
            self._group.send(tensors, rank, tag).wait()

        def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> None:
            self.peers.append(rank)
            self._group.recv(tensors, rank, tag).wait()

    def connected(rank: int) -> list[list[int]]:
        made: list[LateGroup] = []

        def connect(*where: Any) -> LateGroup:
            made.append(LateGroup(*where))
            return made[-1]

        meet(str(tmp_path), rank, tensor, pipeline, connect)
        return [group.peers for group in made]

    ranks = range(tensor * pipeline)
    with ThreadPoolExecutor(len(ranks)) as threads:
        found = list(threads.map(connected, ranks))
    if pipeline == 1:
        assert found == [[[-1]]] * 2
    else:  # hidden states to the next stage, answers from the last one
        assert found == [[[1], [2]], [[0, 2], [2]], [[1], [0, 1]]]
