"""Memory of recorded programs: what is never needed at the same time lies in the same place."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

Tensor = torch.Tensor

ALIGNED: Final = 64
"""Bytes of a line of the cache."""


@dataclass(frozen=True, slots=True)
class Made:
    """Memory that a recorded function took; once it is free, others may get its address."""

    before: int
    """The number of the call behind it."""
    start: int
    size: int


@dataclass(slots=True)
class _Piece:
    """Memory, and when it is needed."""

    start: int
    size: int
    first: int = -1
    """The number of the first call that knows it; -1: none does."""
    last: int = -1
    offset: int = 0


class Room:
    """Memory for programs that never run at the same time: they all have the same, as much as the
    largest wants.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return at least so many bytes, perhaps those that others have too.

        Who has got smaller ones keeps them.
        """
        if self._memory.nbytes < size:
            self._memory = torch.empty(max(size, 2 * self._memory.nbytes), dtype=torch.uint8)
        return self._memory


class Arena:
    """Places for all that was made, and where an old address is now."""

    def __init__(
        self, made: Sequence[Made], pointers: Sequence[Sequence[int]], kept: int, room: Room
    ) -> None:
        """`pointers` are those that each call is given, in the order of the calls; what `kept`
        points to outlives them all.
        """
        pieces: list[_Piece] = []
        self._of_call: Final[list[dict[int, _Piece]]] = []
        newest = _Newest()
        waiting = list(reversed(made))
        for number, each in enumerate([*pointers, [kept]]):
            while waiting and waiting[-1].before <= number:
                memory = waiting.pop()
                pieces.append(newest.add(_Piece(memory.start, memory.size)))
            found = {
                pointer: piece for pointer in each if (piece := newest.at(pointer)) is not None
            }
            for piece in found.values():
                piece.first = number if piece.first < 0 else piece.first
                piece.last = number
            self._of_call.append(found)
        size = _place([piece for piece in pieces if piece.first >= 0])
        self.nbytes: Final = size
        """How much of the room it uses."""
        self._memory: Final = room.take(size + ALIGNED)
        self._base: Final = self._memory.data_ptr() + -self._memory.data_ptr() % ALIGNED

    def moved(self, number: int, pointer: int) -> int:
        """Return where this is now that was given to a call; what the function did not make stays
        where it was.
        """
        piece = self._of_call[number].get(pointer)
        return pointer if piece is None else self._base + piece.offset + pointer - piece.start

    def kept(self, like: Tensor) -> Tensor | None:
        """Return what outlives the calls; None for what was there before, or is not contiguous."""
        if like.data_ptr() not in self._of_call[-1] or not like.is_contiguous():
            return None
        start = self.moved(-1, like.data_ptr()) - self._memory.data_ptr()
        return (
            self._memory[start : start + like.numel() * like.itemsize]
            .view(like.dtype)
            .view(like.shape)
        )


class _Newest:
    """Of memory that had the same address one after the other, the newest."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[_Piece] = []

    def add(self, piece: _Piece) -> _Piece:
        """Put it in the place of all that it overlaps."""
        first = bisect_right(self._starts, piece.start)
        if first and self._pieces[first - 1].start + self._pieces[first - 1].size > piece.start:
            first -= 1
        end = bisect_left(self._starts, piece.start + piece.size)
        self._starts[first:end], self._pieces[first:end] = [piece.start], [piece]
        return piece

    def at(self, pointer: int) -> _Piece | None:
        """Return what a pointer leads into."""
        place = bisect_right(self._starts, pointer) - 1
        piece = self._pieces[place] if place >= 0 else None
        return piece if piece is not None and pointer < piece.start + piece.size else None


def _place(pieces: list[_Piece]) -> int:
    """Give each piece the lowest place that is free while it is needed; return the bytes of all."""
    needed: list[_Piece] = []
    end = 0
    for piece in sorted(pieces, key=lambda p: p.first):
        needed = sorted((p for p in needed if p.last >= piece.first), key=lambda p: p.offset)
        for other in needed:
            if piece.offset + piece.size <= other.offset:
                break
            piece.offset = max(piece.offset, _aligned(other.offset + other.size))
        needed.append(piece)
        end = max(end, piece.offset + piece.size)
    return end


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED) * ALIGNED
