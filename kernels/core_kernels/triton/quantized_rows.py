"""Rows in eight-bit floats (e4m3) or integers with scales, as products of eight bits read them."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, warps

Tensor = torch.Tensor

HIGHEST: Final = tl.constexpr(448.0)
"""Maximum of float8_e4m3fn."""
HIGHEST_INTEGER: Final = tl.constexpr(127.0)
"""Maximum of int8; the minimum is its negative, as zero is the middle."""
HALFWAY: Final = tl.constexpr(12582912.0)
"""1.5 * 2^23: float32 around it are integers, so that adding it rounds, ties to even."""
MAX_AT_ONCE: Final = 4096
"""Maximum elements per program step."""


class QuantizedRows(NamedTuple):
    """Rows of x, rounded."""

    values: Tensor
    """[n, width], float8_e4m3fn or int8."""
    scales: Tensor
    """[n, groups], float32, stored group by group."""
    group: int
    """Elements per scale."""
    dtype: torch.dtype
    """Dtype of x, and of its products."""

    @classmethod
    def empty(
        cls, count: int, width: int, group: int, kind: torch.dtype, like: Tensor
    ) -> QuantizedRows:
        """Return memory for rows of `kind` with a scale for each `group` of elements."""
        groups = triton.cdiv(width, group)
        values = torch.empty((count, width), dtype=kind, device=like.device)
        scales = torch.empty((groups, count), dtype=torch.float32, device=like.device)
        by_row = scales.T if groups > 1 else scales.view(count, 1)
        return cls(values, by_row, min(group, width), like.dtype)

    @property
    def codes(self) -> Tensor:
        """The values as kernels write them: floats as bytes."""
        return self.values if self.values.dtype is torch.int8 else self.values.view(torch.uint8)


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
def scale_of(highest, INTEGER: tl.constexpr):
    """Return the scale of elements with this largest magnitude, and what to divide them by.

    A NaN or infinity makes the scale NaN: in eight bits it could become finite.
    """
    if INTEGER:
        limit = HIGHEST_INTEGER
    else:
        limit = HIGHEST
    scale = tl.where(highest == float("inf"), float("nan"), highest / limit)
    return scale, tl.where(scale == 0.0, 1.0, scale)


@triton.jit
def rounded(x, INTEGER: tl.constexpr):
    """Return the codes of numbers that were divided by their scale."""
    if INTEGER:
        inside = tl.minimum(tl.maximum(x, -HIGHEST_INTEGER), HIGHEST_INTEGER)
        inside = tl.where(x == x, inside, 0.0)  # of no number only the scale tells
        return ((inside + HALFWAY) - HALFWAY).to(tl.int8)
    else:
        return nearest(x)


@triton.jit
def store_quantized(
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
    scale, divisor = scale_of(highest, codes.dtype.element_ty == tl.int8)
    found = rounded(parts / divisor[:, :, None], codes.dtype.element_ty == tl.int8)
    found = tl.reshape(found, (ROWS, BLOCK))
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


def round_rows(x: Tensor, group: int, kind: torch.dtype = torch.float8_e4m3fn) -> QuantizedRows:
    """Return the rows of x [n, width] in `kind`, with a scale for each `group` of elements."""
    count, width = x.shape
    group = min(group, width)
    out = QuantizedRows.empty(count, width, group, kind, x)
    at_once = min(MAX_AT_ONCE, next_power_of_2(group))
    _round[count, triton.cdiv(width, group)](
        x,
        x.stride(0),
        x.stride(1),
        out.codes,
        out.scales,
        count,
        width,
        group,
        AT_ONCE=at_once,
        num_warps=warps(at_once),
    )
    return out


@triton.jit(do_not_specialize=["count"])
def _round(x, x_row, x_element, values, scales, count, width, group, AT_ONCE: tl.constexpr):
    """One program: the elements of a row that share a scale."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * group
    end = tl.minimum(first + group, width)
    highest = tl.zeros((), tl.float32)
    for at in range(first, end, AT_ONCE):
        element = at + tl.arange(0, AT_ONCE)
        read = tl.load(x + row * x_row + element * x_element, mask=element < end, other=0.0).to(
            tl.float32
        )
        broken = tl.max(tl.where(read == read, 0, 1)) > 0
        largest = tl.max(tl.where(read == read, tl.abs(read), 0.0))
        highest = tl.where(broken, float("inf"), tl.maximum(highest, largest))
    scale, divisor = scale_of(highest, values.dtype.element_ty == tl.int8)
    tl.store(scales + tl.program_id(1) * count + row, scale)
    for at in range(first, end, AT_ONCE):
        element = at + tl.arange(0, AT_ONCE)
        read = tl.load(x + row * x_row + element * x_element, mask=element < end, other=0.0).to(
            tl.float32
        )
        tl.store(
            values + row * width + element,
            rounded(read / divisor, values.dtype.element_ty == tl.int8),
            mask=element < end,
        )
