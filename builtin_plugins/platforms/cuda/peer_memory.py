"""Sums over GPUs that see each other's memory, by torch's symmetric memory.

Each rank copies its tensor to a buffer that all ranks can read. One-shot: every rank reads all
buffers, in the order of ranks. Two-shot: every rank sums one part for all. Both give the same bits
on all ranks.
"""

from __future__ import annotations

import socket
from typing import Any, Final, Protocol

import torch
import torch.distributed

_dist: Any = torch.distributed  # its names have no type information

MAX_BYTES: Final = 8 << 20
"""Largest tensor; NCCL moves larger ones as fast."""
ONE_SHOT_BYTES: Final = {2: MAX_BYTES, 4: 512 << 10, 8: 256 << 10}
"""Largest tensor of a one-shot sum, by the numbers of ranks that torch has kernels for."""
ALIGNED: Final = 16
DTYPES: Final = (torch.bfloat16, torch.float32)


class PeerMemory(Protocol):
    """Buffers that all ranks can read."""

    def one_shot(self, x: torch.Tensor) -> None:
        """Overwrite contiguous x with its sum over the ranks; for small tensors."""

    def two_shot(self, x: torch.Tensor) -> None:
        """Overwrite contiguous x with its sum over the ranks."""


class SymmetricMemory:
    """Buffers of torch's symmetric memory. Never run."""

    def __init__(self, backend: Any, store: Any, rank: int, size: int) -> None:
        """Exchange the buffers' addresses with the other ranks.

        Raises `RuntimeError` where devices do not see each other's memory.
        """
        # Imported lazily: only ranks of GPUs need it.
        from torch.distributed import _symmetric_memory

        self._group: Final = registered_group(backend, store, rank, size, "cuda")
        self._name: Final = self._group.group_name
        device = torch.device("cuda", torch.cuda.current_device())
        self._buffer = _symmetric_memory.empty(MAX_BYTES, dtype=torch.uint8, device=device)
        _symmetric_memory.rendezvous(self._buffer, self._name)

    def one_shot(self, x: torch.Tensor) -> None:
        """Overwrite x with its sum over the ranks."""
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(self._part(x), x, "sum", self._name, x)

    def two_shot(self, x: torch.Tensor) -> None:
        """Overwrite x with its sum over the ranks."""
        torch.ops.symm_mem.two_shot_all_reduce_out(self._part(x).copy_(x), "sum", self._name, x)

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        """Return the start of the buffer as a tensor like x."""
        return self._buffer[: x.nbytes].view(x.dtype).view(x.shape)


def registered_group(backend: Any, store: Any, rank: int, size: int, device: str) -> Any:
    """Return the ranks as a group that torch's operations find by name, while it exists."""
    group = _dist.ProcessGroup(store, rank, size)
    kind = getattr(_dist.ProcessGroup.BackendType, backend.name().upper())
    group._register_backend(torch.device(device), kind, backend)
    name = f"tensor parallel ranks {id(group)}"
    group._set_group_name(name)
    _dist.distributed_c10d._register_process_group(name, group)
    return group


def is_one_host(store: Any, rank: int, size: int) -> bool:
    """Return whether all ranks run on one host; blocks until all call it."""
    store.set(f"host {rank}", socket.gethostname())
    return len({store.get(f"host {other}") for other in range(size)}) == 1


def shots(x: torch.Tensor, size: int) -> int:
    """Return 1 for a one-shot sum of x over `size` ranks, 2 for a two-shot one, 0 for NCCL's.

    Depends on what ranks have in common only, not on addresses.
    """
    nbytes = x.nbytes
    start = x.storage_offset() * x.itemsize
    if size not in ONE_SHOT_BYTES or x.dtype not in DTYPES or not 0 < nbytes <= MAX_BYTES:
        return 0
    if nbytes % ALIGNED or start % ALIGNED:
        return 0
    return 1 if nbytes <= ONE_SHOT_BYTES[size] else 2
