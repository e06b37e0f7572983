"""Row operations: norms in float32, gated activations and the rotary embedding.

Norms and activations also write rows in eight bits, for products that read them so.
"""

from __future__ import annotations

from typing import Final, TypeVar

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import Rows, next_power_of_2, rows_of, sigmoid, tanh, warps
from core_kernels.triton.quantized_rows import QuantizedRows, store_quantized

Tensor = torch.Tensor
Target = TypeVar("Target", Tensor, QuantizedRows)

ELEMENTS = 4096
"""Elements per program; short rows (heads) share a program."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * (weight + offset) over the last dimension, as a new contiguous tensor."""
    return normed(x, _like(x), weight, None, eps, offset, centred=False)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean) / deviation * weight + bias over the last dimension, as a new contiguous
    tensor.
    """
    return normed(x, _like(x), weight, bias, eps, 0.0, centred=True)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual) as new contiguous tensors.

    The sum is rounded before the norm.
    """
    out = _like(x)
    return out, sum_normed(x, residual, out, weight, None, eps, offset, centred=False)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual) as new contiguous tensors.

    The sum is rounded before the norm.
    """
    out = _like(x)
    return out, sum_normed(x, residual, out, weight, bias, eps, 0.0, centred=True)


def sum_normed(
    x: Tensor,
    residual: Tensor,
    out: Tensor | QuantizedRows,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> Tensor:
    """Write the norm of x + residual to `out`; return the sum as a new contiguous tensor."""
    total = _like(x)
    rows = rows_of(x)
    others = rows_of(residual)
    if rows.count and rows.width:
        per, block = _norm_shape(rows)
        values, scales, group = _target(out, rows.width, block)
        _add_norm[(triton.cdiv(rows.count, per),)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride,
            others.tensor, others.inner, others.outer_stride, others.inner_stride,
            values, scales, total, weight, bias, rows.count, eps, offset,
            WIDTH=rows.width, ROWS=per, BLOCK=block, CENTRED=centred, GROUP=group,
            num_warps=warps(per * block),
        )  # fmt: skip
    return total


def normed(
    x: Tensor,
    out: Target,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> Target:
    """Write the norm of x to `out` and return it; `centred`: the mean is subtracted first."""
    rows = rows_of(x)
    if rows.count and rows.width:
        per, block = _norm_shape(rows)
        values, scales, group = _target(out, rows.width, block)
        _norm[(triton.cdiv(rows.count, per),)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, values, scales, weight,
            bias, rows.count, eps, offset,
            WIDTH=rows.width, ROWS=per, BLOCK=block, CENTRED=centred, GROUP=group,
            num_warps=warps(per * block),
        )  # fmt: skip
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _target(
    out: Tensor | QuantizedRows, width: int, block: int
) -> tuple[Tensor, Tensor | None, int]:
    """Return where elements and scales are written, and the elements of a block that share one."""
    if isinstance(out, QuantizedRows):
        return out.codes, out.scales, block if out.group == width else out.group
    return out, None, 0


def _norm_shape(rows: Rows) -> tuple[int, int]:
    """Return the rows per program and the block size."""
    block = next_power_of_2(rows.width)
    return min(max(1, ELEMENTS // block), next_power_of_2(rows.count)), block


@triton.jit
def _store_normed(
    x, wide, mine, row, element, out, scales, weight, bias, count, eps, offset,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Store the norm of float32 rows `wide`, in eight bits if there are `scales`."""
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
    if scales is not None:
        rounded = wide.to(x.dtype.element_ty).to(tl.float32)
        store_quantized(out, scales, rounded, row, 0, count, WIDTH, ROWS, BLOCK, GROUP)
    else:
        to = out + row[:, None] * WIDTH + element[None, :]
        tl.store(to, wide.to(out.dtype.element_ty), mask=mine)


@triton.jit(do_not_specialize=["count", "eps", "offset"])
def _norm(
    x, inner, outer_stride, inner_stride, out, scales, weight, bias, count, eps, offset,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    element = tl.arange(0, BLOCK)
    mine = (row < count)[:, None] & (element < WIDTH)[None, :]
    at = row // inner * outer_stride + row % inner * inner_stride
    wide = tl.load(x + at[:, None] + element[None, :], mask=mine, other=0.0).to(tl.float32)
    _store_normed(
        x, wide, mine, row, element, out, scales, weight, bias, count, eps, offset, WIDTH, ROWS,
        BLOCK, CENTRED, GROUP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "eps", "offset"])
def _add_norm(
    x, inner, outer_stride, inner_stride, residual, other_inner, other_outer_stride,
    other_inner_stride,
    out, scales, total, weight, bias, count, eps, offset, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr, GROUP: tl.constexpr,
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
    _store_normed(
        x, summed.to(tl.float32), mine, row, element, out, scales, weight, bias, count, eps, offset,
        WIDTH, ROWS, BLOCK, CENTRED, GROUP,
    )  # fmt: skip


GATED_BLOCK: Final = 1024
"""Elements per program of an activation, and of one that writes a scale for a whole row."""
MAX_GATED_BLOCK: Final = 16384
ACTIVATIONS: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "swiglu_clamped": 4}


def gated(x: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up for x = [..., gate | up] as a new contiguous tensor, half as
    wide.

    `activation` is a key of `ACTIVATIONS`; the product is rounded once.
    """
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    write_gated(x, activation, out)
    return out


def write_gated(x: Tensor, activation: str, out: Tensor | QuantizedRows) -> None:
    """Write activation(gate) * up to `out`; with one scale per row, at most `MAX_GATED_BLOCK`
    elements.
    """
    half = x.shape[-1] // 2
    rows = rows_of(x)
    if rows.count and half:
        block = GATED_BLOCK
        if isinstance(out, QuantizedRows) and out.group == half:
            block = next_power_of_2(half)
        values, scales, group = _target(out, half, block)
        _gated[rows.count, triton.cdiv(half, block)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, values, scales,
            rows.count, half,
            ACTIVATION=ACTIVATIONS[activation], BLOCK=block, GROUP=group,
            num_warps=max(4, warps(block)),
        )  # fmt: skip


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


@triton.jit(do_not_specialize=["count"])
def _gated(
    x, inner, outer_stride, inner_stride, out, scales, count, half,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    element = first + tl.arange(0, BLOCK)
    at = x + row // inner * outer_stride + row % inner * inner_stride + element
    gate = tl.load(at, mask=element < half, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=element < half, other=0.0).to(tl.float32)
    found = activated(gate, up, ACTIVATION)
    if scales is not None:
        rounded = found.to(x.dtype.element_ty).to(tl.float32)
        store_quantized(
            out, scales, rounded[None, :], row + tl.arange(0, 1), first, count, half, 1, BLOCK,
            GROUP,
        )  # fmt: skip
    else:
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
