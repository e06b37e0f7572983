"""FP8 GEMM with `torch._scaled_mm`; rows of x are quantized in Triton.

`torch._scaled_mm` takes one scale per row of either side, or one per 128 elements. Rows may be
quantized by the kernel that computes them (`Float8Inputs`).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton import row_ops
from core_kernels.triton.float8 import Float8Rows, nearest, scale_of
from core_kernels.triton.launching import next_power_of_2, warps
from core_kernels.triton.quantized import ALIGNED, WHOLE_ROW, FloatOps

Tensor = torch.Tensor

BLOCK: Final = 128
MAX_AT_ONCE: Final = 4096
"""Maximum elements per program step."""


class ScaledFloatOps(FloatOps):
    """FP8 weights with quantized x (a scale per row or per 128 elements), using scaled_mm.

    This needs bfloat16 x, e4m3 weights, such scales, and sizes that are multiples of 16. All other
    products use unquantized x.
    """

    def linear(
        self, x: Tensor | Float8Rows, weight: Tensor, rows: int, order: Tensor | None = None
    ) -> Tensor:
        """Return x @ weight.T, [..., rows]. `Float8Rows` are those of `inputs`."""
        if isinstance(x, Float8Rows):
            return self._multiply(x, weight, rows)
        width = x.shape[-1]
        if not (self._multiplies(x.dtype, rows, width) and x.numel()):
            return super().linear(x, weight, rows, order)
        out = self._multiply(round_rows(x.reshape(-1, width), self.group), weight, rows)
        return out.view(*x.shape[:-1], rows)

    def inputs(self, rows: int, width: int, dtype: torch.dtype) -> Float8Inputs | None:
        """Return kernels that write x for a weight [rows, width]; None: x is not quantized."""
        return Float8Inputs(self.group) if self._multiplies(dtype, rows, width) else None

    def _multiply(self, x: Float8Rows, weight: Tensor, rows: int) -> Tensor:
        views = self.parts(weight, rows, x.values.shape[1])
        if not len(x.values):
            return x.scales.new_empty(0, rows, dtype=x.dtype)
        return torch._scaled_mm(
            x.values,
            views.codes.view(self.kind).T,
            scale_a=x.scales,
            scale_b=views.scales,
            out_dtype=x.dtype,
        )

    def _multiplies(self, dtype: torch.dtype, rows: int, width: int) -> bool:
        known = self.kind is torch.float8_e4m3fn and dtype is torch.bfloat16
        return (
            known and self.group in (WHOLE_ROW, BLOCK) and not (rows % ALIGNED or width % ALIGNED)
        )


class Float8Inputs:
    """Norms and activations that write rows as `ScaledFloatOps.linear` multiplies them.

    Results equal those of `row_ops`, then `round_rows`, bit by bit.
    """

    def __init__(self, group: int) -> None:
        """`group`: elements per scale."""
        self._group = group

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Float8Rows:
        """Return the normalised rows of x [n, width]."""
        out = Float8Rows.empty(len(x), x.shape[1], self._group, x)
        row_ops.normed(x, out, weight, None, eps, offset, centred=False)
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Float8Rows, Tensor]:
        """Return the normalised rows of x + residual, and that sum, not quantized."""
        out = Float8Rows.empty(len(x), x.shape[1], self._group, x)
        total = row_ops.sum_normed(x, residual, out, weight, None, eps, offset, centred=False)
        return out, total

    def gated(self, x: Tensor, activation: str) -> Float8Rows:
        """Return activation(gate) * up for x = [n, gate | up]."""
        width = x.shape[1] // 2
        if self._group > width > row_ops.MAX_GATED_BLOCK:  # a scale needs all of its elements
            return round_rows(row_ops.gated(x, activation), self._group)
        out = Float8Rows.empty(len(x), width, self._group, x)
        row_ops.write_gated(x, activation, out)
        return out


def round_rows(x: Tensor, group: int) -> Float8Rows:
    """Return the rows of x [n, width], with a scale for each `group` of elements."""
    count, width = x.shape
    group = min(group, width)
    out = Float8Rows.empty(count, width, group, x)
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
    scale, divisor = scale_of(highest)
    tl.store(scales + tl.program_id(1) * count + row, scale)
    for at in range(first, end, AT_ONCE):
        element = at + tl.arange(0, AT_ONCE)
        read = tl.load(x + row * x_row + element * x_element, mask=element < end, other=0.0).to(
            tl.float32
        )
        tl.store(
            values + row * width + element,
            nearest(read / divisor),
            mask=element < end,
        )
