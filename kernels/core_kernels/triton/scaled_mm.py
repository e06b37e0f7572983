"""FP8 GEMM with `torch._scaled_mm`; rows of x are quantized in Triton.

`torch._scaled_mm` takes one scale per row of either side, or one per 128 elements.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, warps
from core_kernels.triton.quantized import ALIGNED, WHOLE_ROW, FloatOps

Tensor = torch.Tensor

HIGHEST: Final = tl.constexpr(448.0)
"""Maximum of float8_e4m3fn."""
BLOCK: Final = 128
MAX_AT_ONCE: Final = 4096
"""Maximum elements per program step."""


class ScaledFloatOps(FloatOps):
    """FP8 weights with quantized x (a scale per row or per 128 elements), using scaled_mm.

    This needs bfloat16 x, e4m3 weights, such scales, and sizes that are multiples of 16. All other
    products use unquantized x.
    """

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        width = x.shape[-1]
        if not (self._is_multiplied(x, rows, width) and x.numel()):
            return super().linear(x, weight, rows, order)
        views = self.parts(weight, rows, width)
        values, scales = round_rows(x.reshape(-1, width), self.group)
        out = torch._scaled_mm(
            values,
            views.codes.view(self.kind).T,
            scale_a=scales,
            scale_b=views.scales,
            out_dtype=x.dtype,
        )
        return out.view(*x.shape[:-1], rows)

    def _is_multiplied(self, x: Tensor, rows: int, width: int) -> bool:
        known = self.kind is torch.float8_e4m3fn and x.dtype is torch.bfloat16
        return (
            known and self.group in (WHOLE_ROW, BLOCK) and not (rows % ALIGNED or width % ALIGNED)
        )


def round_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return x [n, width] as float8_e4m3fn, and its float32 scales [n, groups], stored group by
    group.
    """
    count, width = x.shape
    group = min(group, width)
    groups = triton.cdiv(width, group)
    values = torch.empty((count, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((groups, count), dtype=torch.float32, device=x.device)
    at_once = min(MAX_AT_ONCE, next_power_of_2(group))
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
    """Return the bytes of the nearest e4m3 floats, ties to even.

    Uses the bits of float32: the interpreter's conversion rounds differently.
    """
    size = tl.minimum(tl.abs(x), HIGHEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    small = ((size + 16384.0 - 16384.0) * 512.0).to(tl.int32)  # subnormals have steps of 2^-9
    sign = tl.where(x < 0.0, 0x80, 0)
    return (tl.where(size < 0.015625, small, normal) | sign).to(tl.uint8)


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
        highest = tl.where(broken, float("inf"), tl.maximum(highest, tl.max(tl.abs(read))))
    # A NaN or infinity makes the scale NaN: in eight bits it could become finite.
    scale = tl.where(highest == float("inf"), float("nan"), highest / HIGHEST)
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
