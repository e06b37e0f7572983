"""A gated product in one launch: activation(x @ gate.T + bias) * (x @ up.T + bias).

For few rows, where a step waits for launches and weights; more rows take two launches.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from core_kernels.triton.autotune import LAUNCH_CONFIGS, Autotuner, LaunchConfig, row_bucket
from core_kernels.triton.launching import product, uses_float32
from core_kernels.triton.registers import register_options
from core_kernels.triton.row_ops import ACTIVATIONS, activated, gated

Tensor = torch.Tensor

MAX_ROWS: Final = 64
"""Largest number of rows of one launch."""
INNER: Final = 64
"""Columns per accumulation step."""
TWO_LAUNCHES: Final = LaunchConfig(0, 0, 0)
"""The library's product, then the activation: chosen on devices where it is faster."""
AUTOTUNE: Final = Autotuner("gated-linear", (*LAUNCH_CONFIGS, TWO_LAUNCHES))


def gated_linear(x: Tensor, weight: Tensor, activation: str, bias: Tensor | None = None) -> Tensor:
    """Return activation(gate) * up for [gate | up] = x @ weight.T + bias, x [n, hidden] and weight
    [2 * width, hidden] with contiguous rows.

    `activation` is a key of `ACTIVATIONS`. Gate and up are rounded to the dtype of x.
    """
    count, hidden = x.shape
    width = len(weight) // 2
    if not 0 < count <= MAX_ROWS or x.stride(1) != 1:
        return gated(linear(x, weight, bias), activation)
    out = x.new_empty(count, width)
    rows = row_bucket(count)

    def launch(config: LaunchConfig) -> None:
        nonlocal out
        if config == TWO_LAUNCHES:
            out = gated(linear(x, weight, bias), activation)
            return
        _gated_product[(triton.cdiv(width, config.columns),)](
            x, x.stride(0), weight, weight[width:], weight.stride(0), bias,
            None if bias is None else bias[width:], out, count, width, hidden,
            ACTIVATION=ACTIVATIONS[activation], ROWS=rows, COLUMNS=config.columns, INNER=INNER,
            WIDE=uses_float32(x), num_warps=config.warps, num_stages=config.stages,
            **register_options("_gated_product", config.warps),
        )  # fmt: skip

    has_bias = bias is not None
    AUTOTUNE.launch(x.device, (rows, width, hidden, activation, str(x.dtype), has_bias), launch)
    return out


@triton.jit(do_not_specialize=["count"])
def _gated_product(
    x, x_row, gate_weight, up_weight, weight_row, gate_bias, up_bias, out, count, width, hidden,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program: some columns of all rows."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mine = (row < count)[:, None]
    row_of_weight = column.to(tl.int64)[:, None] * weight_row
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for at in range(0, hidden, INNER):
        element = at + tl.arange(0, INNER)
        inside = (element < hidden)[None, :]
        read = tl.load(x + row[:, None] * x_row + element[None, :], mask=mine & inside, other=0.0)
        there = (column < width)[:, None] & inside
        at_weight = row_of_weight + element[None, :]
        one = tl.load(gate_weight + at_weight, mask=there, other=0.0)
        other = tl.load(up_weight + at_weight, mask=there, other=0.0)
        gate = product(read, tl.trans(one), gate, WIDE)
        up = product(read, tl.trans(other), up, WIDE)
    if gate_bias is not None:
        gate += tl.load(gate_bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
        up += tl.load(up_bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    kind = out.dtype.element_ty
    found = activated(gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32), ACTIVATION)
    tl.store(
        out + row[:, None] * width + column[None, :],
        found.to(kind),
        mask=mine & (column < width)[None, :],
    )
