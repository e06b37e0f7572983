"""Row operations: norms in float32, gated activations and the rotary embedding."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import Rows, next_power_of_2, rows_of, sigmoid, tanh, warps

Tensor = torch.Tensor

ELEMENTS = 4096
"""Elements per program; short rows (heads) share a program."""


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
    """Return (rms_norm(x + residual), x + residual) as new contiguous tensors.

    The sum is next_power_of_2 before the norm.
    """
    out, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    rows = rows_of(x)
    others = rows_of(residual)
    if rows.count and rows.width:
        per, block = _norm_shape(rows)
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
        per, block = _norm_shape(rows)
        _norm[(triton.cdiv(rows.count, per),)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, out, weight, bias,
            rows.count, eps, offset,
            WIDTH=rows.width, ROWS=per, BLOCK=block, CENTRED=centred, num_warps=warps(per * block),
        )  # fmt: skip
    return out


def _norm_shape(rows: Rows) -> tuple[int, int]:
    """Return the rows per program and the block size."""
    block = next_power_of_2(rows.width)
    return min(max(1, ELEMENTS // block), next_power_of_2(rows.count)), block


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
    x, inner, outer_stride, inner_stride, residual, other_inner, other_outer_stride,
    other_inner_stride,
    out, total, weight, count, eps, offset, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
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


GATED_BLOCK: Final = 1024
ACTIVATIONS: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "swiglu_clamped": 4}


def gated(x: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up for x = [..., gate | up] as a new contiguous tensor, half as
    wide.

    `activation` is a key of `ACTIVATIONS`; the product is rounded once.
    """
    half = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], half)
    rows = rows_of(x)
    if rows.count and half:
        _gated[rows.count, triton.cdiv(half, GATED_BLOCK)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, out, half,
            ACTIVATION=ACTIVATIONS[activation], GATED_BLOCK=GATED_BLOCK, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """Return activation(gate) * up in float32."""
    if ACTIVATION == 0:
        return gate * sigmoid(gate) * up
    elif ACTIVATION == 1:
        return gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    elif ACTIVATION == 2:
        return (
            gate
            * 0.5
            * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
            * up
        )
    elif ACTIVATION == 3:
        return tl.maximum(gate, 0.0) * up
    else:
        gate = tl.minimum(gate, 7.0)
        return gate * sigmoid(gate * 1.702) * (tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0)


@triton.jit
def _gated(
    x,
    inner,
    outer_stride,
    inner_stride,
    out,
    half,
    ACTIVATION: tl.constexpr,
    GATED_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * GATED_BLOCK + tl.arange(0, GATED_BLOCK)
    at = x + row // inner * outer_stride + row % inner * inner_stride + element
    gate = tl.load(at, mask=element < half, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=element < half, other=0.0).to(tl.float32)
    found = activated(gate, up, ACTIVATION)
    tl.store(out + row * half + element, found.to(out.dtype.element_ty), mask=element < half)


HEADS_AT_ONCE = 8


def rotary(
    query: Tensor, key: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Apply rotary embedding to query [n, heads, size] and key [n, kv_heads, size] in place and
    return them.

    `cos_sin` is float32 [positions, rotary size].
    """
    num_tokens = len(query)
    heads = query.shape[1]
    kv_heads = key.shape[1]
    half = cos_sin.shape[1] // 2
    at_once = min(HEADS_AT_ONCE, next_power_of_2(max(heads, kv_heads)))
    if num_tokens and half:
        parts = triton.cdiv(heads, at_once)
        _rotary[num_tokens, parts + triton.cdiv(kv_heads, at_once)](
            query, query.stride(0), query.stride(1), heads, parts, key, key.stride(0),
            key.stride(1), kv_heads,
            cos_sin, cos_sin.stride(0), positions,
            HALF=half, HEADS=at_once, BLOCK=next_power_of_2(half), INTERLEAVED=interleaved,
            num_warps=2,
        )  # fmt: skip
    return query, key


@triton.jit
def rotate(at, at_other, cosines, sines, mine):
    """Rotate pairs of elements in memory, in float32."""
    a = tl.load(at, mask=mine, other=0.0).to(tl.float32)
    b = tl.load(at_other, mask=mine, other=0.0).to(tl.float32)
    tl.store(at, (a * cosines - b * sines).to(at.dtype.element_ty), mask=mine)
    tl.store(at_other, (b * cosines + a * sines).to(at.dtype.element_ty), mask=mine)


@triton.jit
def _rotary(
    query, query_token, query_head, heads, parts, key, key_token, key_head, kv_heads, cos_sin,
    cos_sin_row, positions,
    HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One program: some heads of a token's query or key."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    row = cos_sin + tl.load(positions + token) * cos_sin_row
    cosines = tl.load(row + pair, mask=pair < HALF, other=0.0)[None, :]
    sines = tl.load(row + HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    if INTERLEAVED:
        first = 2 * pair
        other = first + 1
    else:
        first = pair
        other = pair + HALF
    if part < parts:
        head = part * HEADS + tl.arange(0, HEADS)
        mine = (head < heads)[:, None] & (pair < HALF)[None, :]
        at = query + token * query_token + head[:, None] * query_head
        rotate(at + first[None, :], at + other[None, :], cosines, sines, mine)
    else:
        head = (part - parts) * HEADS + tl.arange(0, HEADS)
        mine = (head < kv_heads)[:, None] & (pair < HALF)[None, :]
        at = key + token * key_token + head[:, None] * key_head
        rotate(at + first[None, :], at + other[None, :], cosines, sines, mine)
