"""Rows in eight-bit floats (e4m3) with scales, as products of FP8 weights read them."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

HIGHEST: Final = tl.constexpr(448.0)
"""Maximum of float8_e4m3fn."""


class Float8Rows(NamedTuple):
    """Rows of x, rounded."""

    values: Tensor
    """[n, width], float8_e4m3fn."""
    scales: Tensor
    """[n, groups], float32, stored group by group."""
    group: int
    """Elements per scale."""
    dtype: torch.dtype
    """Dtype of x, and of its products."""

    @classmethod
    def empty(cls, count: int, width: int, group: int, like: Tensor) -> Float8Rows:
        """Return memory for rows with a scale for each `group` of elements."""
        groups = triton.cdiv(width, group)
        values = torch.empty((count, width), dtype=torch.float8_e4m3fn, device=like.device)
        scales = torch.empty((groups, count), dtype=torch.float32, device=like.device)
        by_row = scales.T if groups > 1 else scales.view(count, 1)
        return cls(values, by_row, min(group, width), like.dtype)

    @property
    def codes(self) -> Tensor:
        """The values as bytes."""
        return self.values.view(torch.uint8)


@triton.jit
def nearest(x):
    """Return the bytes of the nearest e4m3 floats, ties to even.

    Uses the bits of float32: the interpreter's conversion rounds differently.
    """
    size = tl.minimum(tl.abs(x), HIGHEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    small = ((size + 16384.0 - 16384.0) * 512.0).to(tl.int32)  # subnormals have steps of 2^-9
    sign = tl.where(x < 0.0, 0x80, 0)
    return (tl.where(size < 0.015625, small, normal) | sign).to(tl.uint8)


@triton.jit
def scale_of(highest):
    """Return the scale of elements with this largest magnitude, and what to divide them by.

    A NaN or infinity makes the scale NaN: in eight bits it could become finite.
    """
    scale = tl.where(highest == float("inf"), float("nan"), highest / HIGHEST)
    return scale, tl.where(scale == 0.0, 1.0, scale)


@triton.jit
def store_float8(
    codes, scales, x, row, first, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Round x [ROWS, BLOCK], the columns from `first` of rows `row`, and store it.

    x is 0 outside of the `count` rows of `width` elements.
    """
    parts = tl.reshape(x, (ROWS, BLOCK // GROUP, GROUP))
    broken = tl.max(tl.where(parts == parts, 0, 1), 2) > 0
    largest = tl.max(tl.where(parts == parts, tl.abs(parts), 0.0), 2)
    highest = tl.where(broken, float("inf"), largest)
    scale, divisor = scale_of(highest)
    found = tl.reshape(nearest(parts / divisor[:, :, None]), (ROWS, BLOCK))
    group = first // GROUP + tl.arange(0, BLOCK // GROUP)
    mine = (row < count)[:, None]
    tl.store(
        scales + group[None, :] * count + row[:, None],
        scale,
        mask=mine & (group * GROUP < width)[None, :],
    )
    element = first + tl.arange(0, BLOCK)
    tl.store(
        codes + row[:, None] * width + element[None, :],
        found,
        mask=mine & (element < width)[None, :],
    )
