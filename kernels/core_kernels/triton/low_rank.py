"""Adapters of low rank: what each row's own adapter adds to a product, for rows of many adapters in
two launches.

Rows are sorted by adapter, once in a step. A table says on the device where an adapter's factors
are, so that a recorded launch finds those that are there when it is made again; factors may differ
in rank and in the columns they change.
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

from core_kernels.low_rank import LowRankParts, Plain
from core_kernels.triton.launching import INTERPRETED, LEAST_PRODUCT, last_at_most, product

Tensor = torch.Tensor

ROOM: Final = 1024
"""Rows, at first."""
ROWS: Final = 16
"""Rows of a block where adapters have few; four times as many where they have many."""
MANY_ROWS: Final = 64
COLUMNS: Final = 64
INNER: Final = 128
"""Inputs that are multiplied at once."""
SHARE: Final = 1024
"""Inputs of which a program makes its share of what is between the factors."""
MOST_SHARES: Final = 8
FACTS: Final = tl.constexpr(5)
"""Numbers of an adapter in a table: places of the first factors and of what is said of the parts,
their ranks together, how
many parts there are, place of the bias; 0 where there is none."""
PART: Final = tl.constexpr(4)
"""Numbers of a part: place of its second factor, its first column, how many columns, its rank."""
KINDS: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class LowRankLayer:
    """What one adapter adds to one layer."""

    def __init__(self, parts: Sequence[Plain], bias: Tensor | None, device: str) -> None:
        """Keep the factors of all parts, of one dtype, and `bias` [all columns] of that dtype."""
        self.rank: Final = sum(len(part.a) for part in parts)
        self._first = torch.cat([part.a for part in parts]) if parts else None
        self._second = [part.b.contiguous() for part in parts]
        self._bias = bias
        said = [
            [b.data_ptr(), part.first, *b.shape]
            for part, b in zip(parts, self._second, strict=True)
        ]
        self._parts = torch.tensor(said, dtype=torch.int64).to(device)
        self.facts: Final = (
            0 if self._first is None else self._first.data_ptr(),
            self._parts.data_ptr(),
            self.rank,
            len(parts),
            0 if bias is None else bias.data_ptr(),
        )

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        kept = (self._first, *self._second, self._bias)
        return sum(each.nbytes for each in kept if each is not None)


class LowRankTable:
    """What all adapters add to one layer, by number; its place on the device stays."""

    def __init__(self, size: int, most_ranks: int, device: str) -> None:
        self.size = size
        self.most_ranks = most_ranks
        self.facts = torch.zeros((size, FACTS.value), dtype=torch.int64, device=device)
        self._kept: dict[int, LowRankLayer] = {}

    def put(self, number: int, layer: LowRankLayer | None) -> None:
        """Set, or take out, what one adapter adds, for steps that are launched from now on."""
        facts = [0] * FACTS.value if layer is None else layer.facts
        self.facts[number].copy_(torch.tensor(facts), non_blocking=True)
        if layer is None:
            self._kept.pop(number, None)
        else:
            self._kept[number] = layer


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows by adapter, on the device."""

    order: Tensor
    """[n]: rows, those of an adapter behind each other, and last those that have none."""
    starts: Tensor
    """[adapters + 1]: where in `order` each one's begin."""
    blocks: Tensor
    """[adapters + 1]: how many blocks of `block` rows, of which no adapter shares one, come before
    each one's.
    """
    block: int


class StepRows:
    """Whose the rows of a step are, at the same places in every step as long as there is room."""

    def __init__(self, num_adapters: int, device: str) -> None:
        self._num_adapters = num_adapters
        self._device = device
        self.moves = 0
        """How often the rows have got another place."""
        self._edges = torch.zeros((2, num_adapters + 1), dtype=torch.int64, device=device)
        self._make_room(ROOM)

    def _make_room(self, rows: int) -> None:
        self._adapters = torch.empty(rows, dtype=torch.int32, device=self._device)
        self._places = torch.empty(rows, dtype=torch.int64, device=self._device)

    def take(self, adapters: npt.NDArray[np.int32]) -> None:
        """Note each row's adapter; -1: it has none."""
        count = self._count = len(adapters)
        if count > len(self._places):
            self._make_room(2 * count)
            self.moves += 1
        self._adapters[:count].copy_(torch.from_numpy(adapters), non_blocking=True)
        found = self._group(self._adapters[:count])
        self._places[:count].copy_(found.order)
        self._edges[0].copy_(found.starts)
        self._edges[1].copy_(found.blocks)
        self._grouped = Grouped(self._places[:count], self._edges[0], self._edges[1], found.block)

    def among(self, tokens: Tensor | slice | None) -> Grouped:
        """Return the rows, or a choice of them."""
        if tokens is None:
            return self._grouped
        return self._group(self._adapters[: self._count][tokens])

    def _group(self, adapters: Tensor) -> Grouped:
        block = MANY_ROWS if len(adapters) >= MANY_ROWS * self._num_adapters else ROWS
        keys, order = torch.where(adapters < 0, self._num_adapters, adapters).sort(stable=True)
        numbers = torch.arange(self._num_adapters + 1, dtype=keys.dtype, device=keys.device)
        starts = torch.searchsorted(keys, numbers)
        blocks = torch.zeros_like(starts)
        torch.cumsum((starts.diff() + block - 1) // block, 0, out=blocks[1:])
        return Grouped(order, starts, blocks, block)


class LowRankOps:
    """Bound to a device, to the dtype of factors, and to the greatest rank that a part may have."""

    def __init__(self, device: str, dtype: torch.dtype, most_rank: int) -> None:
        self._device = device
        self._dtype = dtype
        self._most_rank = most_rank

    def pack(self, layers: Sequence[LowRankParts]) -> list[LowRankLayer]:
        """Return what an adapter adds to each layer, in the order given."""
        return [LowRankLayer(each.parts, each.bias, self._device) for each in layers]

    def table(self, size: int, most_parts: int) -> LowRankTable:
        """Return a table for so many adapters, none of which has more parts."""
        return LowRankTable(size, self._most_rank * most_parts, self._device)

    def rows(self, num_adapters: int) -> StepRows:
        """Return what notes whose rows are."""
        return StepRows(num_adapters, self._device)

    def add(self, out: Tensor, x: Tensor, rows: Grouped, table: LowRankTable) -> None:
        """Add to out [rows, columns] what the adapter of each row makes of x [rows, in].

        Numbers of a row follow each other. What is between the factors is rounded to their dtype.
        """
        count, width = x.shape
        columns = out.shape[1]
        if not (count and columns):
            return
        shares = min(MOST_SHARES, max(1, triton.cdiv(width, SHARE)))
        between = torch.empty(
            (shares, count, table.most_ranks), dtype=torch.float32, device=x.device
        )
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
        _shrink[grid, triton.cdiv(table.most_ranks, LEAST_PRODUCT), shares](
            x, x.stride(0), between, *where, width, table.most_ranks,
            SHARES=shares, RANKS=LEAST_PRODUCT, INNER=INNER, **common, num_warps=4,
        )  # fmt: skip
        _expand[grid, triton.cdiv(columns, COLUMNS)](
            between, out, out.stride(0), *where, columns, table.most_ranks,
            SHARES=shares, RANKS=LEAST_PRODUCT, COLUMNS=COLUMNS, **common, num_warps=4,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_adapters", "count"])
def _shrink(
    x, x_row, between, facts, order, starts, blocks, num_adapters, count, width, room,
    SHARES: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, INNER: tl.constexpr, KIND: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """A program: a share of what an adapter's first factors make of a block of its rows, for some
    ranks.
    """
    block = tl.program_id(0)
    if block < tl.load(blocks + num_adapters):
        adapter = last_at_most(blocks, num_adapters, block)
        a = tl.load(facts + adapter * FACTS).to(tl.pointer_type(KIND))
        ranks = tl.load(facts + adapter * FACTS + 2)
        rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
        if tl.program_id(1) * RANKS < ranks:
            place = (
                tl.load(starts + adapter)
                + (block - tl.load(blocks + adapter)) * ROWS
                + tl.arange(0, ROWS)
            )
            mine = place < tl.load(starts + adapter + 1)
            row = tl.load(order + place, mask=mine, other=0)
            found = tl.zeros((ROWS, RANKS), tl.float32)
            for at in range(tl.program_id(2) * INNER, width, SHARES * INNER):
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
            at_place = between + (tl.program_id(2) * count + place)[:, None] * room + rank[None, :]
            tl.store(at_place, found, mask=mine[:, None] & (rank < ranks)[None, :])


@triton.jit(do_not_specialize=["num_adapters", "count"])
def _expand(
    between, out, out_row, facts, order, starts, blocks, num_adapters, count, columns, room,
    SHARES: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """A program: some columns of a block of an adapter's rows, to which each part adds where it has
    columns there.
    """
    block = tl.program_id(0)
    if block < tl.load(blocks + num_adapters):
        adapter = last_at_most(blocks, num_adapters, block)
        parts = tl.load(facts + adapter * FACTS + 1).to(tl.pointer_type(tl.int64))
        bias = tl.load(facts + adapter * FACTS + 4)
        place = (
            tl.load(starts + adapter)
            + (block - tl.load(blocks + adapter)) * ROWS
            + tl.arange(0, ROWS)
        )
        mine = place < tl.load(starts + adapter + 1)
        start = tl.program_id(1) * COLUMNS
        column = start + tl.arange(0, COLUMNS)
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        before = tl.zeros((), tl.int64)
        for part in range(tl.load(facts + adapter * FACTS + 3)):
            b = tl.load(parts + part * PART).to(tl.pointer_type(KIND))
            first = tl.load(parts + part * PART + 1)
            last = first + tl.load(parts + part * PART + 2)
            ranks = tl.load(parts + part * PART + 3)
            if (first < start + COLUMNS) & (last > start):
                inside = (column >= first) & (column < last)
                for at in range(0, ranks, RANKS):
                    rank = at + tl.arange(0, RANKS)
                    narrow = tl.zeros((ROWS, RANKS), tl.float32)
                    for share in range(SHARES):
                        narrow += tl.load(
                            between
                            + (share * count + place)[:, None] * room
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
            added = tl.load(
                bias.to(tl.pointer_type(KIND)) + column, mask=column < columns, other=0.0
            )
            found += added.to(tl.float32)[None, :]
        row = tl.load(order + place, mask=mine, other=0)
        here = mine[:, None] & (column < columns)[None, :]
        at_row = out + row[:, None] * out_row + column[None, :]
        found += tl.load(at_row, mask=here, other=0.0).to(tl.float32)
        tl.store(at_row, found.to(out.dtype.element_ty), mask=here)
