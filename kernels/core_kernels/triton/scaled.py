"""Products of eight-bit floats with eight-bit floats: rows of x are rounded in Triton, torch
multiplies.

`torch._scaled_mm` takes one scale for each row of either side, or one for 128 numbers of each.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import rounded, warps
from core_kernels.triton.quantized import ALIGNED, WHOLE_ROW, FloatOps

Tensor = torch.Tensor

HIGHEST: Final = tl.constexpr(448.0)
"""Of float8_e4m3fn."""
BLOCK: Final = 128
MOST_AT_ONCE: Final = 4096
"""Numbers of a row that a program looks at in one go."""


class ScaledFloatOps(FloatOps):
    """Weights of which x is rounded to eight bits too, each row or each 128 numbers with a scale,
    where torch multiplies.

    That is for bfloat16, floats of the kind e4m3, such scales and sizes that are multiples of 16.
    Everything else is the product with x as it is.
    """

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        width = x.shape[-1]
        if not (self._is_multiplied(x, rows, width) and x.numel()):
            return super().linear(x, weight, rows, order)
        kept = self.parts(weight, rows, width)
        values, scales = round_rows(x.reshape(-1, width), self.group)
        out = torch._scaled_mm(
            values,
            kept.codes.view(self.kind).T,
            scale_a=scales,
            scale_b=kept.scales,
            out_dtype=x.dtype,
        )
        return out.view(*x.shape[:-1], rows)

    def _is_multiplied(self, x: Tensor, rows: int, width: int) -> bool:
        known = self.kind is torch.float8_e4m3fn and x.dtype is torch.bfloat16
        return (
            known and self.group in (WHOLE_ROW, BLOCK) and not (rows % ALIGNED or width % ALIGNED)
        )


def round_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return x [n, width] as float8_e4m3fn, and its float32 scales [n, groups], which lie group by
    group.
    """
    count, width = x.shape
    group = min(group, width)
    groups = triton.cdiv(width, group)
    values = torch.empty((count, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((groups, count), dtype=torch.float32, device=x.device)
    at_once = min(MOST_AT_ONCE, rounded(group))
    _round[count, groups](
        x,
        x.stride(0),
        x.stride(1),
        values.view(torch.uint8),
        scales,
        count,
        width,
        group,
        AT_ONCE=at_once,
        num_warps=warps(at_once),
    )
    return values, scales.T if groups > 1 else scales.view(count, 1)


@triton.jit
def _nearest(x):
    """Return the bytes of the nearest floats of the kind e4m3, of two the even one, as the hardware
    has them.

    By the bits of float32: the interpreter's own conversion rounds otherwise.
    """
    size = tl.minimum(tl.abs(x), HIGHEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    small = ((size + 16384.0 - 16384.0) * 512.0).to(
        tl.int32
    )  # below the normal ones steps are of 2^-9
    sign = tl.where(x < 0.0, 0x80, 0)
    return (tl.where(size < 0.015625, small, normal) | sign).to(tl.uint8)


@triton.jit(do_not_specialize=["count"])
def _round(x, x_row, x_element, values, scales, count, width, group, AT_ONCE: tl.constexpr):
    """A program: the numbers of a row that share a scale."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * group
    end = tl.minimum(first + group, width)
    most = tl.zeros((), tl.float32)
    for at in range(first, end, AT_ONCE):
        element = at + tl.arange(0, AT_ONCE)
        read = tl.load(x + row * x_row + element * x_element, mask=element < end, other=0.0).to(
            tl.float32
        )
        broken = tl.max(tl.where(read == read, 0, 1)) > 0
        most = tl.where(broken, float("inf"), tl.maximum(most, tl.max(tl.abs(read))))
    # What is no number makes all of the row none: in eight bits it might become one.
    scale = tl.where(most == float("inf"), float("nan"), most / HIGHEST)
    tl.store(scales + tl.program_id(1) * count + row, scale)
    for at in range(first, end, AT_ONCE):
        element = at + tl.arange(0, AT_ONCE)
        read = tl.load(x + row * x_row + element * x_element, mask=element < end, other=0.0).to(
            tl.float32
        )
        tl.store(
            values + row * width + element,
            _nearest(read / tl.where(scale == 0.0, 1.0, scale)),
            mask=element < end,
        )
