"""FP8 GEMM with `torch._scaled_mm`; rows of x are quantized in Triton.

`torch._scaled_mm` takes one scale per row of either side, or one per 128 elements. Rows may be
quantized by the kernel that computes them (`RowQuantizer`).
"""

from __future__ import annotations

from typing import Final

import torch

from core_kernels.triton.quantized import ALIGNED, WHOLE_ROW, FloatOps
from core_kernels.triton.quantized_rows import QuantizedRows, round_rows
from core_kernels.triton.row_quantizer import RowQuantizer

Tensor = torch.Tensor

BLOCK: Final = 128


class ScaledFloatOps(FloatOps):
    """FP8 weights with quantized x (a scale per row or per 128 elements), using scaled_mm.

    This needs bfloat16 x, e4m3 weights, such scales, and sizes that are multiples of 16. All other
    products use unquantized x.
    """

    def linear(
        self, x: Tensor | QuantizedRows, weight: Tensor, rows: int, order: Tensor | None = None
    ) -> Tensor:
        """Return x @ weight.T, [..., rows]. `QuantizedRows` are those of `inputs`."""
        if isinstance(x, QuantizedRows):
            return self._multiply(x, weight, rows)
        width = x.shape[-1]
        if not (self._multiplies(x.dtype, rows, width) and x.numel()):
            return super().linear(x, weight, rows, order)
        out = self._multiply(round_rows(x.reshape(-1, width), self.group), weight, rows)
        return out.view(*x.shape[:-1], rows)

    def inputs(self, rows: int, width: int, dtype: torch.dtype) -> RowQuantizer | None:
        """Return kernels that write x for a weight [rows, width]; None: x is not quantized."""
        return RowQuantizer(self.group) if self._multiplies(dtype, rows, width) else None

    def _multiply(self, x: QuantizedRows, weight: Tensor, rows: int) -> Tensor:
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
