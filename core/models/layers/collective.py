"""Ranks that are processes: groups and pipelines over torch.distributed.

Processes find each other through a file in a folder of their own and talk over the loopback
interface only. Nothing is pickled: only tensors travel, whose shapes both sides know.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed

from core.models.layers.parallel import ParallelGroup, Pipeline

_dist: Any = torch.distributed  # exports most of its names to nobody who checks types
LOOPBACK: Final = "127.0.0.1"
PATIENCE: Final = timedelta(hours=1)
"""For a rank that does not answer: whoever watches the processes knows sooner what has become of
it.
"""

Connect = Callable[[Any, int, int], Any]
"""Takes a store of the group's own, rank and size; returns a process group of torch.distributed."""


def gloo(store: Any, rank: int, size: int) -> Any:
    """Return the group of CPU ranks of one machine, reachable from this machine only."""
    backend = _dist.ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=LOOPBACK)]
    options._timeout = PATIENCE
    return backend(store, rank, size, options)


def meet(
    folder: str, rank: int, tensor: int, pipeline: int, connect: Connect = gloo
) -> tuple[ParallelGroup, Pipeline]:
    """Return this rank's group and pipeline, once those it belongs to are complete.

    `folder` is private to the ranks of one model. Ranks are counted stage by stage: `tensor` ranks
    in each.
    """
    store = _dist.FileStore(f"{folder}/ranks", tensor * pipeline)
    stage, place = divmod(rank, tensor)

    def group_of(name: str, own: int, size: int) -> Any:
        return connect(_dist.PrefixStore(name, store), own, size)

    group = (
        ParallelGroup()
        if tensor == 1
        else Group(group_of(f"tensor {stage}", place, tensor), tensor, place)
    )
    if pipeline == 1:
        return group, Pipeline()
    return group, Chain(group_of(f"pipeline {place}", stage, pipeline), pipeline, stage)


class Group(ParallelGroup):
    """Ranks that split every layer."""

    def __init__(self, process_group: Any, size: int, rank: int) -> None:
        super().__init__(size, rank)
        self._group = process_group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks; the same bits on each."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x one after the other along the last dimension."""
        parts = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(self.size)]
        self._group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, -1)


class Chain(Pipeline):
    """Stages that share out the layers."""

    def __init__(self, process_group: Any, size: int, rank: int) -> None:
        super().__init__(size, rank)
        self._group = process_group
        self._from_last = _dist.BroadcastOptions()
        self._from_last.rootRank = size - 1

    def send(self, x: torch.Tensor) -> None:
        """Give x to the next stage."""
        self._group.send([x.contiguous()], self.rank + 1, 0).wait()

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the stage before sends."""
        self._group.recv([x], self.rank - 1, 0).wait()
        return x

    def from_last(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last stage's x on every stage."""
        self._group.broadcast([x], self._from_last).wait()
        return x
