"""LoRA adapters: their factors in the kernel's layout, and their deltas."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from core_kernels.large_pages import LARGE_PAGE, allocate_large
from core_kernels.library import Library
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

PAIR: Final = 32
"""Elements loaded at once; rows of the A factor and columns of the B factor are padded to it."""
RANKS: Final = 4
COLUMNS: Final = 64
LINE_BYTES: Final = 64
INITIAL_ROWS: Final = 1024
"""Initial capacity in rows of a step."""
_Bits = npt.NDArray[Any]
_BITS: Final = {2: torch.int16, 4: torch.int32}


class _Part(ctypes.Structure):
    """`LowRankPart` of cpu/gemm/low_rank.h."""

    _fields_ = (
        ("b", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("first", "width", "rank")),
    )


class _LowRank(ctypes.Structure):
    """`LowRank` of cpu/gemm/low_rank.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "parts", "bias")),
        *((name, ctypes.c_int64) for name in ("rank", "num_parts")),
    )


@dataclass(frozen=True, slots=True)
class LowRankFactors:
    """LoRA factors of some output columns: out[:, first : first + len(b)] += (x @ a.T) @ b.T."""

    first: int
    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[columns, rank]"""


@dataclass(frozen=True, slots=True)
class LowRankParts:
    """The delta of one adapter for one layer, as loaded."""

    parts: Sequence[LowRankFactors]
    bias: Tensor | None
    """[all columns], of the parts' dtype."""


class LowRankLayer:
    """The packed delta of one adapter for one layer. A bias without factors is allowed."""

    def __init__(
        self, memory: Tensor, parts: Sequence[LowRankFactors], bias: Tensor | None
    ) -> None:
        """Pack into `memory`, which has `packed_size` elements of the common dtype.

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
        """Bytes of the packed factors and the bias."""
        return self.memory.nbytes + (0 if self.bias is None else self.bias.nbytes)


class LowRankTable:
    """The deltas of all adapters for one layer, by adapter number; its address is constant."""

    def __init__(self, size: int) -> None:
        self._facts: Final = (_LowRank * size)()
        self._layers: dict[int, LowRankLayer] = {}
        self.address: Final = ctypes.addressof(self._facts)
        self.size: Final = size

    def put(self, number: int, layer: LowRankLayer | None) -> None:
        """Set or remove the delta of one adapter. Not during a step."""
        self._facts[number] = _LowRank() if layer is None else layer.facts
        if layer is None:
            self._layers.pop(number, None)
        else:
            self._layers[number] = layer


class StepRows:
    """The adapter of each row of a step; the address is constant unless the capacity grows."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        """`refuse` gets the reason when a recorded step cannot be replayed."""
        self._refuse = refuse
        self.moves = 0
        """Number of reallocations."""
        self._adapters = torch.empty(INITIAL_ROWS, dtype=torch.int32)

    def set_adapters(self, adapters: npt.NDArray[np.int32]) -> None:
        """Set the adapter of each row; -1: none."""
        count = self._count = len(adapters)
        if count > len(self._adapters):
            self._adapters = torch.empty(2 * count, dtype=torch.int32)
            self.moves += 1
        self._adapters[:count] = torch.from_numpy(adapters)

    def select(self, tokens: Tensor | slice | None) -> Tensor:
        """Return the adapters of all rows, or of selected rows."""
        if tokens is None:
            return self._adapters
        self._refuse("LoRA of selected tokens")
        return self._adapters[: self._count][tokens].contiguous()


class LowRankOps:
    """LoRA products of a loaded library.

    Thread-safe and bitwise batch-invariant.
    """

    def __init__(self, library: Library) -> None:
        self._library: Final = library
        self._add: Final = library.core_low_rank

    def memory(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return `count` uninitialized elements, in huge pages if they fill one."""
        num_bytes = count * dtype.itemsize
        if num_bytes < LARGE_PAGE:
            return torch.empty(count, dtype=dtype)
        return allocate_large(self._library, num_bytes).view(dtype)

    def pack(self, layers: Sequence[LowRankParts]) -> list[LowRankLayer]:
        """Return the packed delta of each layer, in the given order and consecutive in memory."""
        if not layers:
            return []
        dtype = next((each.parts[0].a.dtype for each in layers if each.parts), torch.float32)
        line = LINE_BYTES // dtype.itemsize
        sizes = [-(-packed_size(each.parts) // line) * line for each in layers]
        memory = torch.split(self.memory(sum(sizes), dtype), sizes)
        return [
            LowRankLayer(own, each.parts, each.bias)
            for own, each in zip(memory, layers, strict=True)
        ]

    def table(self, size: int, max_parts: int) -> LowRankTable:
        """Return a table for `size` adapters with up to `max_parts` parts."""
        del max_parts  # found through the table
        return LowRankTable(size)

    def rows(self, num_adapters: int) -> StepRows:
        """Return the row-to-adapter map."""
        del num_adapters
        return StepRows(self.refuse)

    def add(self, out: Tensor, x: Tensor, adapters: Tensor, table: LowRankTable) -> None:
        """Add the delta of each row's adapter for x [rows, in] to out [rows, columns].

        `adapters` int32 has an adapter number per row, or -1. All tensors and factors have one
        dtype and contiguous rows.
        """
        self._add(
            out.data_ptr(), x.data_ptr(), adapters.data_ptr(), table.address, table.size,
            len(x), x.shape[1], out.shape[1], x.stride(0), out.stride(0), DTYPES[out.dtype],
        )  # fmt: skip

    def refuse(self, reason: str) -> None:
        """Mark a recorded step as not replayable."""
        listener = self._library.listener
        if listener is not None:
            listener.refuse(reason)


def packed_size(parts: Sequence[LowRankFactors]) -> int:
    """Return the number of packed elements, padded to whole cache lines."""
    second = sum(part.b.shape[1] * padded(len(part.b)) for part in parts)
    return second + sum(len(part.a) * padded(part.a.shape[1]) for part in parts)


def padded(count: int) -> int:
    """Return `count` rounded up to a multiple of `PAIR`."""
    return -(-count // PAIR) * PAIR


def _bits(tensor: Tensor) -> _Bits:
    """Return the same memory for numpy, which copies with one thread and without the GIL."""
    found: _Bits = tensor.view(_BITS[tensor.itemsize]).numpy()
    return found


def _pack_first(target: _Bits, a: _Bits) -> None:
    """Write a [ranks, in] by blocks of ranks, and within a block by pairs of vectors."""
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
    """Write b [columns, rank] by panels of columns, and within a panel by ranks."""
    columns, rank = b.shape
    whole = columns // COLUMNS * COLUMNS
    panels = target[: whole * rank].reshape(whole // COLUMNS, rank, COLUMNS)
    panels[:] = b[:whole].reshape(whole // COLUMNS, COLUMNS, rank).transpose(0, 2, 1)
    if whole < columns:
        last = target[whole * rank :].reshape(rank, -1)
        last[:, columns - whole :] = 0
        last[:, : columns - whole] = b[whole:].T
