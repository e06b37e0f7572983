"""Norms of rows, in float32 whatever the rows are; small rows several to a program, as heads are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import Rows, rounded, rows_of, warps

Tensor = torch.Tensor

ELEMENTS = 4096
"""Of a program, where rows are smaller."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * (weight + offset) over the last dimension, as a new contiguous tensor."""
    return _normed(x, weight, None, eps, offset, centred=False)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean) / deviation * weight + bias over the last dimension, as a new contiguous
    tensor.
    """
    return _normed(x, weight, bias, eps, 0.0, centred=True)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual) as new contiguous tensors; the sum is rounded
    before it is normed.
    """
    out, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    rows = rows_of(x)
    others = rows_of(residual)
    if rows.count and rows.width:
        per, block = _shape(rows)
        _add_norm[(triton.cdiv(rows.count, per),)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride,
            others.tensor, others.inner, others.outer_stride, others.inner_stride,
            out, total, weight, rows.count, eps, offset,
            WIDTH=rows.width, ROWS=per, BLOCK=block, num_warps=warps(per * block),
        )  # fmt: skip
    return out, total


def _normed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = rows_of(x)
    if rows.count and rows.width:
        per, block = _shape(rows)
        _norm[(triton.cdiv(rows.count, per),)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, out, weight, bias, rows.count, eps, offset,
            WIDTH=rows.width, ROWS=per, BLOCK=block, CENTRED=centred, num_warps=warps(per * block),
        )  # fmt: skip
    return out


def _shape(rows: Rows) -> tuple[int, int]:
    """Return how many rows a program has, and how long its block is."""
    block = rounded(rows.width)
    return min(max(1, ELEMENTS // block), rounded(rows.count)), block


@triton.jit(do_not_specialize=["count", "eps", "offset"])
def _norm(
    x, inner, outer_stride, inner_stride, out, weight, bias, count, eps, offset,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    element = tl.arange(0, BLOCK)
    mine = (row < count)[:, None] & (element < WIDTH)[None, :]
    at = row // inner * outer_stride + row % inner * inner_stride
    wide = tl.load(x + at[:, None] + element[None, :], mask=mine, other=0.0).to(tl.float32)
    if CENTRED:
        wide = tl.where(mine, wide - (tl.sum(wide, 1) / WIDTH)[:, None], 0.0)
    wide *= tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)[:, None]
    if weight is not None:
        wide *= (
            tl.load(weight + element, mask=element < WIDTH, other=0.0).to(tl.float32)[None, :]
            + offset
        )
    if bias is not None:
        wide += tl.load(bias + element, mask=element < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * WIDTH + element[None, :], wide.to(out.dtype.element_ty), mask=mine
    )


@triton.jit(do_not_specialize=["count", "eps", "offset"])
def _add_norm(
    x, inner, outer_stride, inner_stride, residual, other_inner, other_outer_stride, other_inner_stride,
    out, total, weight, count, eps, offset, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    element = tl.arange(0, BLOCK)
    mine = (row < count)[:, None] & (element < WIDTH)[None, :]
    at = (row // inner * outer_stride + row % inner * inner_stride)[:, None] + element[None, :]
    other_at = (row // other_inner * other_outer_stride + row % other_inner * other_inner_stride)[
        :, None
    ]
    wide = tl.load(x + at, mask=mine, other=0.0).to(tl.float32)
    wide += tl.load(residual + other_at + element[None, :], mask=mine, other=0.0).to(tl.float32)
    whole = row[:, None] * WIDTH + element[None, :]
    summed = wide.to(total.dtype.element_ty)
    tl.store(total + whole, summed, mask=mine)
    wide = summed.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)[:, None]
    wide *= (
        tl.load(weight + element, mask=element < WIDTH, other=0.0).to(tl.float32)[None, :] + offset
    )
    tl.store(out + whole, wide.to(out.dtype.element_ty), mask=mine)
