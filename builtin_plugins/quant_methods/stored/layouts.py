"""Canonical layouts: what formats unpack to. Independent of formats, kernels and layers.

`dequantize` is the reference of every product with a layout: dequantize to float32, then multiply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch

Tensor = torch.Tensor

CHUNK_NUMBERS: Final = 1 << 22
"""Numbers dequantized at once, which bounds the temporary memory for a large weight."""


class Layout(Protocol):
    """One rank's weight [out, in] in numbers that need a scale. A plugin may define another."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""

    def slice_rows(self, own: slice) -> Layout:
        """Return some of the rows, as views."""

    def dequantize(self) -> Tensor:
        """Return the weight [out, in] in float32."""


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """What is known of a layout before loading; selects the backend."""

    bits: int
    """Stored bits per number, 1 to 8."""
    group_size: int
    """Adjacent inputs of a row that share a scale; -1: one scale per row."""
    has_zeros: bool = False
    has_float_zeros: bool = False
    """Whether zero points are fractional."""
    has_g_idx: bool = False
    """Whether columns name their groups (g_idx) instead of being in order."""
    is_float: bool = False
    """Whether the layout is `ScaledFloats`, not `GroupedInts`."""
    has_global_scales: bool = False
    """Floats: group scales are e4m3, and a second scale multiplies all scales of a row."""
    has_e8m0_scales: bool = False
    """Floats: scales are powers of two."""
    has_codebook: bool = False
    """Floats: numbers are indices into a codebook."""
    spans_rows: bool = False
    """Groups continue from one row to the next: a row may end inside a group."""
    activation_bits: int = 16
    """Bits that the checkpoint expects inputs to be rounded to, with one scale per row; 4: FP4 with
    the kind and groups of the weight's scales.

    Float32 inputs are never rounded.
    """


@dataclass(frozen=True, slots=True)
class GroupedInts:
    """Integers with a scale for each group of a row's inputs: (code - zero) * scale."""

    codes: Tensor
    """int8 [out, in]; unsigned codes and zero points are shifted by half their range."""
    scales: Tensor
    """Scales [out, groups], any floating dtype."""
    zeros: Tensor | None = None
    """Zero points [out, groups], int16 or floating; None: all are 0."""
    g_idx: Tensor | None = None
    """int64 [in]: the group of each column; None: groups are in order and of equal size."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.codes.shape[0], self.codes.shape[1]

    def slice_rows(self, own: slice) -> GroupedInts:
        """Return some of the rows."""
        zeros = None if self.zeros is None else self.zeros[own]
        return replace(self, codes=self.codes[own], scales=self.scales[own], zeros=zeros)

    def dequantize(self) -> Tensor:
        """Return the weight in float32."""
        if self.g_idx is not None:
            codes = self.codes.float()
            if self.zeros is not None:
                codes -= self.zeros.float()[:, self.g_idx]
            return codes * self.scales.float()[:, self.g_idx]
        rows, groups = self.scales.shape
        codes = self.codes.float().view(rows, groups, -1)
        if self.zeros is not None:
            codes -= self.zeros.float().unsqueeze(-1)
        return (codes * self.scales.float().unsqueeze(-1)).view(rows, -1)


@dataclass(frozen=True, slots=True)
class ScaledFloats:
    """Low-bit floats with a scale for each group of a row's inputs: value * scale.

    A scale shared by rows (a tensor's, a block's) is repeated in each. Four- and six-bit numbers
    are stored as the equal float8_e4m3fn, or as codebook indices.
    """

    values: Tensor
    """Values [out, in], any floating dtype; uint8 with a codebook."""
    scales: Tensor
    """Float32 [out, groups]."""
    group_size: int
    """Adjacent inputs that share a scale; the last group may be smaller."""
    codebook: Tensor | None = None
    """Float32: the value of each code."""
    global_scales: Tensor | None = None
    """Float32 [out, 1]: second-level scale of each row; None: there is none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.values.shape[0], self.values.shape[1]

    def slice_rows(self, own: slice) -> ScaledFloats:
        """Return some of the rows."""
        global_scales = None if self.global_scales is None else self.global_scales[own]
        return replace(
            self, values=self.values[own], scales=self.scales[own], global_scales=global_scales
        )

    def full_scales(self) -> Tensor:
        """Return the group scales times the global scales."""
        return self.scales if self.global_scales is None else self.scales * self.global_scales

    def dequantize(self) -> Tensor:
        """Return the weight in float32."""
        rows, width = self.shape
        values = self.values.float() if self.codebook is None else self.codebook[self.values.int()]
        scales = self.full_scales()
        if scales.shape[1] == 1:
            return values * scales
        if width % self.group_size:
            return values * scales.repeat_interleave(self.group_size, 1)[:, :width]
        return (values.view(rows, -1, self.group_size) * scales.unsqueeze(-1)).view(rows, width)


def dequantize_chunks(layout: Layout) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, their float32 weight), a bounded number of elements at a time."""
    out, width = layout.shape
    step = max(1, CHUNK_NUMBERS // max(width, 1))
    for start in range(0, out, step):
        own = slice(start, min(start + step, out))
        yield own, layout.slice_rows(own).dequantize()
