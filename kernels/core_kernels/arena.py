"""Memory planning of recorded programs: buffers with disjoint lifetimes share addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

Tensor = torch.Tensor

ALIGNED: Final = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that a recorded function allocated; once freed, its address may be reused."""

    before: int
    """Index of the call after the allocation."""
    start: int
    size: int


@dataclass(slots=True)
class _Buffer:
    """A memory range and its lifetime."""

    start: int
    size: int
    first: int = -1
    """Index of the first call that uses it; -1: none."""
    last: int = -1
    offset: int = 0


class ProgramMemory:
    """Memory shared by programs that never run at the same time; as large as the largest needs."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, size: int) -> Tensor:
        """Return at least `size` bytes, perhaps shared with other programs.

        Programs that hold smaller memory keep it.
        """
        if self._memory.nbytes < size:
            self._memory = torch.empty(max(size, 2 * self._memory.nbytes), dtype=torch.uint8)
        return self._memory


class Arena:
    """Offsets of all allocations, and the translation of recorded addresses."""

    def __init__(
        self,
        allocations: Sequence[Allocation],
        pointers: Sequence[Sequence[int]],
        output: int,
        memory: ProgramMemory,
    ) -> None:
        """`pointers` are the arguments of each call, in call order.

        The memory at `output` outlives all calls.
        """
        buffers: list[_Buffer] = []
        self._of_call: Final[list[dict[int, _Buffer]]] = []
        newest = _Newest()
        waiting = list(reversed(allocations))
        for number, each in enumerate([*pointers, [output]]):
            while waiting and waiting[-1].before <= number:
                allocation = waiting.pop()
                buffers.append(newest.add(_Buffer(allocation.start, allocation.size)))
            found = {
                pointer: buffer for pointer in each if (buffer := newest.at(pointer)) is not None
            }
            for buffer in found.values():
                buffer.first = number if buffer.first < 0 else buffer.first
                buffer.last = number
            self._of_call.append(found)
        size = _assign_offsets([buffer for buffer in buffers if buffer.first >= 0])
        self.nbytes: Final = size
        """Bytes used of the shared memory."""
        self._memory: Final = memory.reserve(size + ALIGNED)
        self._base: Final = self._memory.data_ptr() + -self._memory.data_ptr() % ALIGNED

    def relocate(self, number: int, pointer: int) -> int:
        """Return the new address of a recorded pointer; pointers to foreign memory are
        unchanged.
        """
        buffer = self._of_call[number].get(pointer)
        return pointer if buffer is None else self._base + buffer.offset + pointer - buffer.start

    def output_view(self, like: Tensor) -> Tensor | None:
        """Return the memory that outlives the calls; None if it is foreign or not contiguous."""
        if like.data_ptr() not in self._of_call[-1] or not like.is_contiguous():
            return None
        start = self.relocate(-1, like.data_ptr()) - self._memory.data_ptr()
        return (
            self._memory[start : start + like.numel() * like.itemsize]
            .view(like.dtype)
            .view(like.shape)
        )


class _Newest:
    """The newest allocation at each address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._buffers: list[_Buffer] = []

    def add(self, buffer: _Buffer) -> _Buffer:
        """Replace all allocations that it overlaps."""
        first = bisect_right(self._starts, buffer.start)
        if first and self._buffers[first - 1].start + self._buffers[first - 1].size > buffer.start:
            first -= 1
        end = bisect_left(self._starts, buffer.start + buffer.size)
        self._starts[first:end] = [buffer.start]
        self._buffers[first:end] = [buffer]
        return buffer

    def at(self, pointer: int) -> _Buffer | None:
        """Return the allocation that a pointer points into."""
        index = bisect_right(self._starts, pointer) - 1
        buffer = self._buffers[index] if index >= 0 else None
        return buffer if buffer is not None and pointer < buffer.start + buffer.size else None


def _assign_offsets(buffers: list[_Buffer]) -> int:
    """Assign each buffer the lowest offset that is free during its lifetime; return the total
    size.
    """
    needed: list[_Buffer] = []
    end = 0
    for buffer in sorted(buffers, key=lambda p: p.first):
        needed = sorted((p for p in needed if p.last >= buffer.first), key=lambda p: p.offset)
        for other in needed:
            if buffer.offset + buffer.size <= other.offset:
                break
            buffer.offset = max(buffer.offset, _aligned(other.offset + other.size))
        needed.append(buffer)
        end = max(end, buffer.offset + buffer.size)
    return end


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED) * ALIGNED
