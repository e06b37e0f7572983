"""Fused MoE: tokens sorted by expert, two grouped products with the activation between them.

Token-config pairs are sorted by expert and split into blocks of `PAIRS`. The grid has the maximum
number of blocks, and programs look up their expert, so there is no host synchronization and no
padding.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.autotune import Autotuner, LaunchConfig, row_bucket
from core_kernels.triton.launching import find_segment, next_power_of_2, product, uses_float32
from core_kernels.triton.routing import route
from core_kernels.triton.row_ops import ACTIVATIONS, activated

Tensor = torch.Tensor

PAIRS: Final = 16
"""Pairs per block when experts have few pairs; `MANY_PAIRS` otherwise."""
MANY_PAIRS: Final = 64
INNER: Final = 64
"""Columns per accumulation step."""
UNGATED: Final = "relu2_alone"
"""Activation of experts without gates."""
AUTOTUNE_UP: Final = Autotuner("experts-up")
AUTOTUNE_DOWN: Final = Autotuner("experts-down")


def moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum [n, hidden] of each token's experts (int64 [n, k], `weights` [n, k]).

    An expert `num_experts` is another rank's: it is not computed, and its weight is 0.

    `gate_up` is [num_experts, 2 * width, hidden], or [num_experts, width, hidden] with `UNGATED`;
    `down` [num_experts, hidden, width]; `bias` of `gate_up` [num_experts, 2 * width]. The last
    dimensions are contiguous.
    """
    num_tokens, choices = experts.shape
    num_experts, hidden, width = down.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    num_pairs = num_tokens * choices
    if not (num_pairs and hidden):
        return out.zero_()
    pairs = MANY_PAIRS if num_pairs >= MANY_PAIRS * num_experts else PAIRS
    order, starts, blocks = route(experts.flatten(), num_experts, pairs)
    grid = triton.cdiv(num_pairs, pairs) + min(num_experts, num_pairs)
    inner = torch.empty((num_pairs, width), dtype=x.dtype, device=x.device)
    outputs = torch.empty((num_pairs, hidden), dtype=x.dtype, device=x.device)
    common = {"PAIRS": pairs, "INNER": INNER, "WIDE": uses_float32(x)}
    shape = (pairs, row_bucket(num_pairs // num_experts), num_experts, width, hidden, str(x.dtype))

    def launch_up(config: LaunchConfig) -> None:
        _up[grid, triton.cdiv(width, config.columns)](
            x, x.stride(0), gate_up, gate_up.stride(0), gate_up.stride(1), bias, inner, order,
            starts, blocks,
            num_experts, choices, width, hidden,
            ACTIVATION=-1 if activation == UNGATED else ACTIVATIONS[activation],
            COLUMNS=config.columns, **common,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip

    def launch_down(config: LaunchConfig) -> None:
        _down[grid, triton.cdiv(hidden, config.columns)](
            inner, down, down.stride(0), down.stride(1), outputs, order, starts, blocks,
            num_experts, width, hidden,
            COLUMNS=config.columns, **common, num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip

    AUTOTUNE_UP.launch(x.device, (*shape, activation), launch_up)
    AUTOTUNE_DOWN.launch(x.device, shape, launch_down)
    block = min(1024, next_power_of_2(hidden))
    _reduce[num_tokens, triton.cdiv(hidden, block)](
        outputs, weights, weights.stride(0), out, hidden, CHOICES=choices, BLOCK=block, num_warps=4
    )
    return out


@triton.jit(do_not_specialize=["num_experts"])
def _up(
    x, x_row, gate_up, gate_up_expert, gate_up_row, bias, inner, order, starts, blocks,
    num_experts, choices, width, hidden,
    ACTIVATION: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program: a block of an expert's pairs, for some columns after the activation."""
    block = tl.program_id(0)
    if block < tl.load(blocks + num_experts):
        expert = find_segment(blocks, num_experts, block)
        first = tl.load(starts + expert) + (block - tl.load(blocks + expert)) * PAIRS
        pair_index = first + tl.arange(0, PAIRS)
        mine = pair_index < tl.load(starts + expert + 1)
        token = tl.load(order + pair_index, mask=mine, other=0) // choices
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        weight = gate_up + expert * gate_up_expert + column[:, None] * gate_up_row
        gate = tl.zeros((PAIRS, COLUMNS), tl.float32)
        up = tl.zeros((PAIRS, COLUMNS), tl.float32)
        for at in range(0, hidden, INNER):
            element = at + tl.arange(0, INNER)
            read = tl.load(
                x + token[:, None] * x_row + element[None, :],
                mask=mine[:, None] & (element < hidden)[None, :],
                other=0.0,
            )
            there = (column < width)[:, None] & (element < hidden)[None, :]
            one = tl.load(weight + element[None, :], mask=there, other=0.0)
            gate = product(read, tl.trans(one), gate, WIDE)
            if ACTIVATION >= 0:
                other = tl.load(
                    weight + width.to(tl.int64) * gate_up_row + element[None, :],
                    mask=there,
                    other=0.0,
                )
                up = product(read, tl.trans(other), up, WIDE)
        if bias is not None:
            row = bias + expert * (width if ACTIVATION < 0 else 2 * width) + column
            gate += tl.load(row, mask=column < width, other=0.0).to(tl.float32)[None, :]
            if ACTIVATION >= 0:
                up += tl.load(row + width, mask=column < width, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION >= 0:
            found = activated(gate, up, ACTIVATION)
        else:
            positive = tl.maximum(gate, 0.0)
            found = positive * positive
        target = inner + pair_index.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(
            target,
            found.to(inner.dtype.element_ty),
            mask=mine[:, None] & (column < width)[None, :],
        )


@triton.jit(do_not_specialize=["num_experts"])
def _down(
    inner, down, down_expert, down_row, outputs, order, starts, blocks, num_experts, width, hidden,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: a block of an expert's pairs, for some output columns, scattered back to its
    pairs.
    """
    block = tl.program_id(0)
    if block < tl.load(blocks + num_experts):
        expert = find_segment(blocks, num_experts, block)
        first = tl.load(starts + expert) + (block - tl.load(blocks + expert)) * PAIRS
        pair_index = first + tl.arange(0, PAIRS)
        mine = pair_index < tl.load(starts + expert + 1)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        weight = down + expert * down_expert + column[:, None] * down_row
        found = tl.zeros((PAIRS, COLUMNS), tl.float32)
        for at in range(0, width, INNER):
            element = at + tl.arange(0, INNER)
            here = mine[:, None] & (element < width)[None, :]
            read = tl.load(
                inner + pair_index[:, None] * width + element[None, :], mask=here, other=0.0
            )
            there = (column < hidden)[:, None] & (element < width)[None, :]
            found = product(
                read,
                tl.trans(tl.load(weight + element[None, :], mask=there, other=0.0)),
                found,
                WIDE,
            )
        pair = tl.load(order + pair_index, mask=mine, other=0)
        at_pair = outputs + pair[:, None] * hidden + column[None, :]
        tl.store(
            at_pair,
            found.to(outputs.dtype.element_ty),
            mask=mine[:, None] & (column < hidden)[None, :],
        )


@triton.jit
def _reduce(outputs, weights, weights_row, out, hidden, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """One program: some columns of a token; sums its experts in the order of its choices."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in range(CHOICES):
        theirs = tl.load(
            outputs + (token * CHOICES + choice) * hidden + column, mask=column < hidden, other=0.0
        )
        weight = tl.load(weights + token * weights_row + choice).to(tl.float32)
        # Without a weight, the output may not have been written.
        total += tl.where(weight != 0, theirs.to(tl.float32) * weight, 0.0)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=column < hidden)
