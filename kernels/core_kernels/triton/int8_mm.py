"""GEMM of eight-bit integers: rows of x are quantized as well, and products are integers.

One scale per row of either side. Rows may be quantized by the kernel that computes them
(`RowQuantizer`).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.autotune import Autotuner, LaunchConfig, row_bucket
from core_kernels.triton.launching import MIN_DOT_SIZE, next_power_of_2
from core_kernels.triton.quantized import MAX_ROWS, WHOLE_ROW, QuantizedOps
from core_kernels.triton.quantized_rows import QuantizedRows, round_rows
from core_kernels.triton.row_quantizer import RowQuantizer

Tensor = torch.Tensor

INNER: Final = 128
"""Columns per accumulation step."""
AUTOTUNE: Final = Autotuner("int8-product")


class ScaledIntOps(QuantizedOps):
    """Eight-bit integers in rows without zero points, multiplied by quantized x.

    Float32 x is not quantized.
    """

    def __init__(self, scales: torch.dtype = torch.bfloat16) -> None:
        """`scales`: dtype of the weight's scales."""
        super().__init__(8, WHOLE_ROW, scales)

    def linear(
        self, x: Tensor | QuantizedRows, weight: Tensor, rows: int, order: Tensor | None = None
    ) -> Tensor:
        """Return x @ weight.T, [..., rows]. `QuantizedRows` are those of `inputs`."""
        if isinstance(x, QuantizedRows):
            return self._multiply(x, weight, rows)
        if x.dtype is torch.float32 or order is not None:
            return super().linear(x, weight, rows, order)
        quantized = round_rows(x.reshape(-1, x.shape[-1]), WHOLE_ROW, torch.int8)
        return self._multiply(quantized, weight, rows).view(*x.shape[:-1], rows)

    def inputs(self, rows: int, width: int, dtype: torch.dtype) -> RowQuantizer | None:
        """Return kernels that write x for a weight [rows, width]; None: x is not quantized."""
        del rows, width
        return None if dtype is torch.float32 else RowQuantizer(WHOLE_ROW, torch.int8)

    def _multiply(self, x: QuantizedRows, weight: Tensor, rows: int) -> Tensor:
        count, width = x.values.shape
        out = torch.empty((count, rows), dtype=x.dtype, device=weight.device)
        if not out.numel():
            return out
        views = self.parts(weight, rows, width)
        block = min(MAX_ROWS, next_power_of_2(count, MIN_DOT_SIZE))

        def launch(config: LaunchConfig) -> None:
            _int8_product[triton.cdiv(count, block), triton.cdiv(rows, config.columns)](
                x.values, x.values.stride(0), x.scales, views.codes, views.codes.stride(0),
                views.scales, out, count, rows, width,
                ROWS=block, COLUMNS=config.columns, INNER=INNER,
                num_warps=config.warps, num_stages=config.stages,
            )  # fmt: skip

        shape = row_bucket(count), rows, width, str(x.dtype), str(self.scales)
        AUTOTUNE.launch(weight.device, shape, launch)
        return out


@triton.jit(do_not_specialize=["count"])
def _int8_product(
    x, x_row, x_scales, codes, code_row, scales, out, count, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """One program: some rows of x by some rows of the weight."""
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mine = index < count
    there = row < rows
    own = x + index.to(tl.int64)[:, None] * x_row
    stored = codes + row.to(tl.int64)[:, None] * code_row
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    for at in range(0, width, INNER):
        element = at + tl.arange(0, INNER)
        inside = (element < width)[None, :]
        read = tl.load(own + element[None, :], mask=mine[:, None] & inside, other=0)
        raw = tl.load(stored + element[None, :], mask=there[:, None] & inside, other=0)
        numbers = raw.to(tl.int8, bitcast=True)
        total = tl.dot(read, tl.trans(numbers), total, out_dtype=tl.int32)
    of_x = tl.load(x_scales + index, mask=mine, other=0.0)
    of_weight = tl.load(scales + row, mask=there, other=0.0).to(tl.float32)
    found = total.to(tl.float32) * of_x[:, None] * of_weight[None, :]
    to = out + index.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(to, found.to(out.dtype.element_ty), mask=mine[:, None] & there[None, :])
