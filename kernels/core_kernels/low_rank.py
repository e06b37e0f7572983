"""Adapters of low rank: their factors in the order in which the kernel reads them, and what they
add to products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from core_kernels.library import Library
from core_kernels.pages import LARGE_PAGE, take_large
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

PAIR: Final = 32
"""Numbers that the kernel loads at once: rows of the first factor are filled up to them, columns of
the second one.
"""
RANKS: Final = 4
COLUMNS: Final = 64
LINE_BYTES: Final = 64
ROOM: Final = 1024
"""Rows of a step, at first."""
_Bits = npt.NDArray[Any]
_BITS: Final = {2: torch.int16, 4: torch.int32}


class _Part(ctypes.Structure):
    """`LowRankPart` of cpu/low_rank.h."""

    _fields_ = (
        ("b", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("first", "width", "rank")),
    )


class _LowRank(ctypes.Structure):
    """`LowRank` of cpu/low_rank.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "parts", "bias")),
        *((name, ctypes.c_int64) for name in ("rank", "num_parts")),
    )


@dataclass(frozen=True, slots=True)
class Plain:
    """A product of low rank for some columns of a layer's: out[:, first : first + len(b)] += (x @
    a.T) @ b.T.
    """

    first: int
    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[columns, rank]"""


@dataclass(frozen=True, slots=True)
class LowRankParts:
    """What one adapter adds to one layer, as it was read."""

    parts: Sequence[Plain]
    bias: Tensor | None
    """[all columns], of the parts' dtype."""


class LowRankLayer:
    """What one adapter adds to one layer, packed. Bias alone is allowed."""

    def __init__(self, memory: Tensor, parts: Sequence[Plain], bias: Tensor | None) -> None:
        """Pack into `memory`, as many numbers as `numbers_of` says, of the dtype of all.

        `bias` [all columns].
        """
        self.memory = memory
        self.bias = bias
        self._parts = (_Part * max(1, len(parts)))()
        rank = sum(len(part.a) for part in parts)
        self.facts: Final = _LowRank(
            rank=rank, num_parts=len(parts), bias=None if bias is None else bias.data_ptr()
        )
        if not parts:
            return
        target = _bits(memory)
        at = rank * padded(parts[0].a.shape[1])
        _pack_first(target[:at], np.concatenate([_bits(part.a) for part in parts]))
        self.facts.a = memory.data_ptr()
        self.facts.parts = ctypes.addressof(self._parts)
        for number, part in enumerate(parts):
            columns, own = part.b.shape
            start = memory.data_ptr() + at * memory.itemsize
            self._parts[number] = _Part(b=start, first=part.first, width=columns, rank=own)
            size = own * padded(columns)
            _pack_second(target[at : at + size], _bits(part.b))
            at += size

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        return self.memory.nbytes + (0 if self.bias is None else self.bias.nbytes)


class LowRankTable:
    """What all adapters add to one layer, by number; its address stays."""

    def __init__(self, size: int) -> None:
        self._facts: Final = (_LowRank * size)()
        self._kept: dict[int, LowRankLayer] = {}
        self.address: Final = ctypes.addressof(self._facts)
        self.size: Final = size

    def put(self, number: int, layer: LowRankLayer | None) -> None:
        """Set, or take out, what one adapter adds. Not while a step is computed."""
        self._facts[number] = _LowRank() if layer is None else layer.facts
        if layer is None:
            self._kept.pop(number, None)
        else:
            self._kept[number] = layer


class StepRows:
    """Whose the rows of a step are, at the same place in every step as long as there is room."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        """`refuse` is told why a step that is recorded cannot be done again."""
        self._refuse = refuse
        self.moves = 0
        """How often the rows have got another place."""
        self._adapters = torch.empty(ROOM, dtype=torch.int32)

    def take(self, adapters: npt.NDArray[np.int32]) -> None:
        """Note each row's adapter; -1: it has none."""
        count = self._count = len(adapters)
        if count > len(self._adapters):
            self._adapters = torch.empty(2 * count, dtype=torch.int32)
            self.moves += 1
        self._adapters[:count] = torch.from_numpy(adapters)

    def among(self, tokens: Tensor | slice | None) -> Tensor:
        """Return the rows' adapters, or those of a choice of them."""
        if tokens is None:
            return self._adapters
        self._refuse("adapters are of chosen tokens")
        return self._adapters[: self._count][tokens].contiguous()


class LowRankOps:
    """Bound to a loaded library.

    Safe to call from several threads. What a row gets depends on that row alone.
    """

    def __init__(self, library: Library) -> None:
        self._library: Final = library
        self._add: Final = library.core_low_rank

    def memory(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return room for so many numbers, in large pages where they fill some."""
        num_bytes = count * dtype.itemsize
        if num_bytes < LARGE_PAGE:
            return torch.empty(count, dtype=dtype)
        return take_large(self._library, num_bytes).view(dtype)

    def pack(self, layers: Sequence[LowRankParts]) -> list[LowRankLayer]:
        """Return what an adapter adds to each layer, in the order given, one behind the other in
        memory.
        """
        if not layers:
            return []
        dtype = next((each.parts[0].a.dtype for each in layers if each.parts), torch.float32)
        line = LINE_BYTES // dtype.itemsize
        sizes = [-(-numbers_of(each.parts) // line) * line for each in layers]
        memory = torch.split(self.memory(sum(sizes), dtype), sizes)
        return [
            LowRankLayer(own, each.parts, each.bias)
            for own, each in zip(memory, layers, strict=True)
        ]

    def table(self, size: int, most_parts: int) -> LowRankTable:
        """Return a table for so many adapters, none of which has more parts."""
        del most_parts  # they are found through the table
        return LowRankTable(size)

    def rows(self, num_adapters: int) -> StepRows:
        """Return what notes whose rows are."""
        del num_adapters
        return StepRows(self.refuse)

    def add(self, out: Tensor, x: Tensor, adapters: Tensor, table: LowRankTable) -> None:
        """Add to out [rows, columns] what the adapter of each row makes of x [rows, in].

        `adapters` int32, at least one number for each row: that of the adapter, -1 for none. Of all
        tensors and factors the dtype is the same, and numbers of a row follow each other.
        """
        self._add(
            out.data_ptr(), x.data_ptr(), adapters.data_ptr(), table.address, table.size,
            len(x), x.shape[1], out.shape[1], x.stride(0), out.stride(0), DTYPES[out.dtype],
        )  # fmt: skip

    def refuse(self, reason: str) -> None:
        """Where a step is recorded, say that it cannot be done again."""
        listener = self._library.listener
        if listener is not None:
            listener.refuse(reason)


def numbers_of(parts: Sequence[Plain]) -> int:
    """Return how many numbers they are when packed, in whole cache lines."""
    second = sum(part.b.shape[1] * padded(len(part.b)) for part in parts)
    return second + sum(len(part.a) * padded(part.a.shape[1]) for part in parts)


def padded(count: int) -> int:
    """Return the numbers that so many are filled up to."""
    return -(-count // PAIR) * PAIR


def _bits(tensor: Tensor) -> _Bits:
    """Return the same memory for numpy, which copies with one thread and without Python's lock."""
    found: _Bits = tensor.view(_BITS[tensor.itemsize]).numpy()
    return found


def _pack_first(target: _Bits, a: _Bits) -> None:
    """Write a [ranks, in] by blocks of ranks, and in a block by pairs of vectors."""
    ranks, width = a.shape
    across = padded(width) // PAIR
    whole = width // PAIR
    full = ranks // RANKS
    for first, count, each in ((0, full, RANKS), (full * RANKS, 1, ranks % RANKS)):
        last = first + count * each
        to = target[first * across * PAIR : last * across * PAIR].reshape(count, across, each, PAIR)
        own = a[first:last, : whole * PAIR]
        rest = a[first:last, whole * PAIR :]
        to[:, :whole] = own.reshape(count, each, whole, PAIR).transpose(0, 2, 1, 3)
        if width % PAIR:
            to[:, whole] = 0
            to[:, whole, :, : width % PAIR] = rest.reshape(count, each, width % PAIR)


def _pack_second(target: _Bits, b: _Bits) -> None:
    """Write b [columns, rank] by panels of columns, and in a panel by ranks."""
    columns, rank = b.shape
    whole = columns // COLUMNS * COLUMNS
    panels = target[: whole * rank].reshape(whole // COLUMNS, rank, COLUMNS)
    panels[:] = b[:whole].reshape(whole // COLUMNS, COLUMNS, rank).transpose(0, 2, 1)
    if whole < columns:
        last = target[whole * rank :].reshape(rank, -1)
        last[:, columns - whole :] = 0
        last[:, : columns - whole] = b[whole:].T
