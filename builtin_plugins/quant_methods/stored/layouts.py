"""The canonical layouts: what formats unpack to, and what each means. Knows no format, no kernel
and no layer.

`plain` is the reference of every product with a layout: make the weight plain in float32, then
multiply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch

Tensor = torch.Tensor

PIECE: Final = 1 << 22
"""Numbers that are made plain at once, so that a large weight needs little memory beside its own.
"""


class Layout(Protocol):
    """A weight [out, in] of one rank in numbers that need a scale. A plugin may bring another."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""

    def rows(self, own: slice) -> Layout:
        """Return some of the rows, as views."""

    def plain(self) -> Tensor:
        """Return the weight [out, in] in float32."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """What is known of a layout before any is read: it says which kernel may keep it."""

    bits: int
    """Of a number as it is stored, 1 to 8."""
    group: int
    """Neighbouring inputs of a row that share a scale; the row's length where a row has one."""
    has_zeros: bool = False
    has_float_zeros: bool = False
    """They are no integers."""
    is_ordered: bool = False
    """Each input column names its group: they do not lie together."""
    is_float: bool = False
    """It is of `ScaledFloats`, not of `GroupedInts`."""
    has_factors: bool = False
    """Of floats: their scales are floats of eight bits (e4m3), and a number multiplies all scales
    of a row.
    """
    has_powers: bool = False
    """Of floats: their scales are powers of two."""
    has_table: bool = False
    """Of floats: they are codes of a table that comes with them."""
    runs_on: bool = False
    """Groups run on from one row to the next: rows may end inside of them."""
    x_bits: int = 16
    """What rows of inputs are rounded to, each with one scale, as the checkpoint was made for;
    float32 never is.
    """


@dataclass(frozen=True, slots=True)
class GroupedInts:
    """Integers with a scale for each group of a row's inputs: (code - zero) * scale."""

    codes: Tensor
    """int8 [out, in]; unsigned ones have their middle taken off, as `zeros` have."""
    scales: Tensor
    """Any floating type [out, groups]."""
    zeros: Tensor | None = None
    """int16 [out, groups], or any floating type; None: all are 0."""
    order: Tensor | None = None
    """int64 [in]: the group of each column; None: groups lie one after the other and are equally
    long.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.codes.shape[0], self.codes.shape[1]

    def rows(self, own: slice) -> GroupedInts:
        """Return some of the rows."""
        zeros = None if self.zeros is None else self.zeros[own]
        return replace(self, codes=self.codes[own], scales=self.scales[own], zeros=zeros)

    def plain(self) -> Tensor:
        """Return the weight in float32."""
        if self.order is not None:
            codes = self.codes.float()
            if self.zeros is not None:
                codes -= self.zeros.float()[:, self.order]
            return codes * self.scales.float()[:, self.order]
        rows, groups = self.scales.shape
        codes = self.codes.float().view(rows, groups, -1)
        if self.zeros is not None:
            codes -= self.zeros.float().unsqueeze(-1)
        return (codes * self.scales.float().unsqueeze(-1)).view(rows, -1)


@dataclass(frozen=True, slots=True)
class ScaledFloats:
    """Floating-point numbers of few bits with a scale for each group of a row's inputs: value *
    scale.

    A scale that is shared by rows (a tensor's, a block's) stands in each of them. Four- and six-bit
    numbers are those of float8_e4m3fn that they are equal to, or codes of a table.
    """

    values: Tensor
    """Any floating type [out, in]; uint8 where there is a table."""
    scales: Tensor
    """Float32 [out, groups]."""
    group: int
    """Neighbouring inputs that share a scale; those of the last group may be fewer."""
    table: Tensor | None = None
    """Float32: what each code stands for."""
    factors: Tensor | None = None
    """Float32 [out, 1]: what multiplies all scales of a row; None: nothing does."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.values.shape[0], self.values.shape[1]

    def rows(self, own: slice) -> ScaledFloats:
        """Return some of the rows."""
        factors = None if self.factors is None else self.factors[own]
        return replace(self, values=self.values[own], scales=self.scales[own], factors=factors)

    def all_of_scales(self) -> Tensor:
        """Return the scales times what multiplies them."""
        return self.scales if self.factors is None else self.scales * self.factors

    def plain(self) -> Tensor:
        """Return the weight in float32."""
        rows, width = self.shape
        values = self.values.float() if self.table is None else self.table[self.values.int()]
        scales = self.all_of_scales()
        if scales.shape[1] == 1:
            return values * scales
        if width % self.group:
            return values * scales.repeat_interleave(self.group, 1)[:, :width]
        return (values.view(rows, -1, self.group) * scales.unsqueeze(-1)).view(rows, width)


def pieces(layout: Layout) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and the float32 weight that they are, few numbers at a time."""
    out, width = layout.shape
    step = max(1, PIECE // max(width, 1))
    for start in range(0, out, step):
        own = slice(start, min(start + step, out))
        yield own, layout.rows(own).plain()
