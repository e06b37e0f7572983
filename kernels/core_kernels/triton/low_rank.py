"""LoRA deltas for rows of many adapters in two launches.

Rows are sorted by adapter once per step. A table on the device holds the addresses of each
adapter's factors, so a captured launch reads the current ones. Factors may differ in rank and in
the columns they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.triton.launching import INTERPRETED, MIN_DOT_SIZE, find_segment, product

Tensor = torch.Tensor

INITIAL_ROWS: Final = 1024
"""Initial capacity in rows."""
ROWS: Final = 16
"""Rows per block when adapters have few rows; `MANY_ROWS` otherwise."""
MANY_ROWS: Final = 64
COLUMNS: Final = 64
INNER: Final = 128
"""Inputs per accumulation step."""
SPLIT_INPUTS: Final = 1024
"""Inputs per split of the shrink product."""
MAX_SPLITS: Final = 8
FACTS: Final = tl.constexpr(5)
"""Table entries of an adapter: addresses of the A factors and of the parts, total rank, number of
parts, address of the bias (0: none).
"""
PART: Final = tl.constexpr(4)
"""Entries of a part: address of its B factor, first column, number of columns, rank."""
RANK_STEP: Final = tl.constexpr(8)
"""Ranks are padded with zeros to a multiple of it, so that rows of B are read in vectors."""
ALIGNMENT: Final = tl.constexpr(16)
"""Bytes that the addresses of factors are multiples of."""
KINDS: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class LowRankLayer:
    """The delta of one adapter for one layer."""

    def __init__(self, parts: Sequence[LowRankFactors], bias: Tensor | None, device: str) -> None:
        """Store the factors of all parts and `bias` [all columns], all of one dtype."""
        more = [-len(part.a) % RANK_STEP.value for part in parts]
        first = [pad(part.a, (0, 0, 0, rows)) for part, rows in zip(parts, more, strict=True)]
        self.rank: Final = sum(map(len, first))
        self._first = torch.cat(first) if parts else None
        self._second = [
            _aligned(pad(part.b, (0, columns))) for part, columns in zip(parts, more, strict=True)
        ]
        self._bias = bias = None if bias is None else _aligned(bias)
        entries = [
            [b.data_ptr(), part.first, *b.shape]
            for part, b in zip(parts, self._second, strict=True)
        ]
        self._parts = torch.tensor(entries, dtype=torch.int64).to(device)
        self.facts: Final = (
            0 if self._first is None else self._first.data_ptr(),
            self._parts.data_ptr(),
            self.rank,
            len(parts),
            0 if bias is None else bias.data_ptr(),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the factors and the bias."""
        tensors = (self._first, *self._second, self._bias)
        return sum(each.nbytes for each in tensors if each is not None)


def _aligned(tensor: Tensor) -> Tensor:
    """Return the contiguous tensor, copied if its address is not a multiple of `ALIGNMENT`."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT.value else tensor


class LowRankTable:
    """The deltas of all adapters for one layer, by adapter number; its device address is
    constant.
    """

    def __init__(self, size: int, max_ranks: int, device: str) -> None:
        self.size = size
        self.max_ranks = max_ranks
        self.facts = torch.zeros((size, FACTS.value), dtype=torch.int64, device=device)
        self._layers: dict[int, LowRankLayer] = {}

    def put(self, number: int, layer: LowRankLayer | None) -> None:
        """Set or remove the delta of one adapter, for steps launched after this."""
        facts = [0] * FACTS.value if layer is None else layer.facts
        self.facts[number].copy_(torch.tensor(facts), non_blocking=True)
        if layer is None:
            self._layers.pop(number, None)
        else:
            self._layers[number] = layer


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows grouped by adapter, on the device."""

    order: Tensor
    """[n]: rows sorted by adapter; rows without an adapter last."""
    starts: Tensor
    """[adapters + 1]: start of each adapter in `order`."""
    blocks: Tensor
    """[adapters + 1]: first block of each adapter; a block has up to `block` rows of one
    adapter.
    """
    block: int


class StepRows:
    """The adapter of each row of a step; device addresses are constant unless the capacity
    grows.
    """

    def __init__(self, num_adapters: int, device: str) -> None:
        self._num_adapters = num_adapters
        self._device = device
        self.moves = 0
        """Number of reallocations."""
        self._edges = torch.zeros((2, num_adapters + 1), dtype=torch.int64, device=device)
        self._allocate(INITIAL_ROWS)

    def _allocate(self, rows: int) -> None:
        self._adapters = torch.empty(rows, dtype=torch.int32, device=self._device)
        self._order = torch.empty(rows, dtype=torch.int64, device=self._device)

    def set_adapters(self, adapters: npt.NDArray[np.int32]) -> None:
        """Set the adapter of each row; -1: none."""
        count = self._count = len(adapters)
        if count > len(self._order):
            self._allocate(2 * count)
            self.moves += 1
        self._adapters[:count].copy_(torch.from_numpy(adapters), non_blocking=True)
        found = self._group(self._adapters[:count])
        self._order[:count].copy_(found.order)
        self._edges[0].copy_(found.starts)
        self._edges[1].copy_(found.blocks)
        self._grouped = GroupedRows(
            self._order[:count], self._edges[0], self._edges[1], found.block
        )

    def select(self, tokens: Tensor | slice | None) -> GroupedRows:
        """Return the grouping of all rows, or of selected rows."""
        if tokens is None:
            return self._grouped
        return self._group(self._adapters[: self._count][tokens])

    def _group(self, adapters: Tensor) -> GroupedRows:
        block = MANY_ROWS if len(adapters) >= MANY_ROWS * self._num_adapters else ROWS
        keys, order = torch.where(adapters < 0, self._num_adapters, adapters).sort(stable=True)
        numbers = torch.arange(self._num_adapters + 1, dtype=keys.dtype, device=keys.device)
        starts = torch.searchsorted(keys, numbers)
        blocks = torch.zeros_like(starts)
        torch.cumsum((starts.diff() + block - 1) // block, 0, out=blocks[1:])
        return GroupedRows(order, starts, blocks, block)


class LowRankOps:
    """LoRA products for a device, a dtype of factors and a maximum rank."""

    def __init__(self, device: str, dtype: torch.dtype, max_rank: int) -> None:
        self._device = device
        self._dtype = dtype
        self._max_rank = max_rank

    def pack(self, layers: Sequence[LowRankParts]) -> list[LowRankLayer]:
        """Return the packed delta of each layer, in the given order."""
        return [LowRankLayer(each.parts, each.bias, self._device) for each in layers]

    def table(self, size: int, max_parts: int) -> LowRankTable:
        """Return a table for `size` adapters with up to `max_parts` parts."""
        step = MIN_DOT_SIZE  # rows of the shrink product are aligned, too
        rank = triton.cdiv(self._max_rank, RANK_STEP.value) * RANK_STEP.value
        return LowRankTable(size, triton.cdiv(rank * max_parts, step) * step, self._device)

    def rows(self, num_adapters: int) -> StepRows:
        """Return the row-to-adapter map."""
        return StepRows(num_adapters, self._device)

    def add(self, out: Tensor, x: Tensor, rows: GroupedRows, table: LowRankTable) -> None:
        """Add the delta of each row's adapter for x [rows, in] to out [rows, columns].

        Rows are contiguous. The shrink result is rounded to the dtype of the factors.
        """
        count, width = x.shape
        columns = out.shape[1]
        if not (count and columns):
            return
        splits = min(MAX_SPLITS, max(1, triton.cdiv(width, SPLIT_INPUTS)))
        shrunk = torch.empty((splits, count, table.max_ranks), dtype=torch.float32, device=x.device)
        grid = triton.cdiv(count, rows.block) + min(table.size, count)
        common = {
            "ROWS": rows.block,
            "KIND": KINDS[self._dtype],
            "WIDE": INTERPRETED or self._dtype == torch.float32,
        }
        where: tuple[Any, ...] = (
            table.facts,
            rows.order,
            rows.starts,
            rows.blocks,
            table.size,
            count,
        )
        _shrink[grid, triton.cdiv(table.max_ranks, MIN_DOT_SIZE), splits](
            x, x.stride(0), shrunk, *where, width, table.max_ranks,
            SPLITS=splits, RANKS=MIN_DOT_SIZE, INNER=INNER, **common, num_warps=4,
        )  # fmt: skip
        _expand[grid, triton.cdiv(columns, COLUMNS)](
            shrunk, out, out.stride(0), *where, columns, table.max_ranks,
            SPLITS=splits, RANKS=MIN_DOT_SIZE, COLUMNS=COLUMNS, **common, num_warps=4,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_adapters", "count"])
def _shrink(
    x, x_row, shrunk, facts, order, starts, blocks, num_adapters, count, width, stride,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, INNER: tl.constexpr,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program: a split of the shrink product of a block of rows, for some ranks."""
    block = tl.program_id(0)
    if block < tl.load(blocks + num_adapters):
        adapter = find_segment(blocks, num_adapters, block)
        a = tl.load(facts + adapter * FACTS).to(tl.pointer_type(KIND))
        a = tl.multiple_of(a, ALIGNMENT)
        ranks = tl.load(facts + adapter * FACTS + 2)
        rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
        if tl.program_id(1) * RANKS < ranks:
            row_index = (
                tl.load(starts + adapter)
                + (block - tl.load(blocks + adapter)) * ROWS
                + tl.arange(0, ROWS)
            )
            mine = row_index < tl.load(starts + adapter + 1)
            row = tl.load(order + row_index, mask=mine, other=0)
            found = tl.zeros((ROWS, RANKS), tl.float32)
            for at in range(tl.program_id(2) * INNER, width, SPLITS * INNER):
                element = at + tl.arange(0, INNER)
                inside = (element < width)[None, :]
                read = tl.load(
                    x + row[:, None] * x_row + element[None, :],
                    mask=mine[:, None] & inside,
                    other=0.0,
                )
                factor = tl.load(
                    a + rank.to(tl.int64)[:, None] * width + element[None, :],
                    mask=(rank < ranks)[:, None] & inside,
                    other=0.0,
                )
                found = product(read.to(KIND), tl.trans(factor), found, WIDE)
            target = (
                shrunk + (tl.program_id(2) * count + row_index)[:, None] * stride + rank[None, :]
            )
            tl.store(target, found, mask=mine[:, None] & (rank < ranks)[None, :])


@triton.jit(do_not_specialize=["num_adapters", "count"])
def _expand(
    shrunk, out, out_row, facts, order, starts, blocks, num_adapters, count, columns, stride,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program: some columns of a block of an adapter's rows; sums the parts that overlap
    them.
    """
    block = tl.program_id(0)
    if block < tl.load(blocks + num_adapters):
        adapter = find_segment(blocks, num_adapters, block)
        parts = tl.load(facts + adapter * FACTS + 1).to(tl.pointer_type(tl.int64))
        bias = tl.load(facts + adapter * FACTS + 4)
        row_index = (
            tl.load(starts + adapter)
            + (block - tl.load(blocks + adapter)) * ROWS
            + tl.arange(0, ROWS)
        )
        mine = row_index < tl.load(starts + adapter + 1)
        start = tl.program_id(1) * COLUMNS
        column = start + tl.arange(0, COLUMNS)
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        before = tl.zeros((), tl.int64)
        for part in range(tl.load(facts + adapter * FACTS + 3)):
            b = tl.load(parts + part * PART).to(tl.pointer_type(KIND))
            b = tl.multiple_of(b, ALIGNMENT)
            first = tl.load(parts + part * PART + 1)
            last = first + tl.load(parts + part * PART + 2)
            ranks = tl.multiple_of(tl.load(parts + part * PART + 3), RANK_STEP)
            if (first < start + COLUMNS) & (last > start):
                inside = (column >= first) & (column < last)
                for at in range(0, ranks, RANKS):
                    rank = at + tl.arange(0, RANKS)
                    narrow = tl.zeros((ROWS, RANKS), tl.float32)
                    for split in range(SPLITS):
                        narrow += tl.load(
                            shrunk
                            + (split * count + row_index)[:, None] * stride
                            + (before + rank)[None, :],
                            mask=mine[:, None] & (rank < ranks)[None, :],
                            other=0.0,
                        )
                    factor = tl.load(
                        b + (column - first)[:, None] * ranks + rank[None, :],
                        mask=inside[:, None] & (rank < ranks)[None, :],
                        other=0.0,
                    )
                    found = product(narrow.to(KIND), tl.trans(factor), found, WIDE)
            before += ranks
        if bias != 0:
            row_of_bias = tl.multiple_of(bias.to(tl.pointer_type(KIND)), ALIGNMENT)
            added = tl.load(row_of_bias + column, mask=column < columns, other=0.0)
            found += added.to(tl.float32)[None, :]
        row = tl.load(order + row_index, mask=mine, other=0)
        here = mine[:, None] & (column < columns)[None, :]
        at_row = out + row[:, None] * out_row + column[None, :]
        found += tl.load(at_row, mask=here, other=0.0).to(tl.float32)
        tl.store(at_row, found.to(out.dtype.element_ty), mask=here)
