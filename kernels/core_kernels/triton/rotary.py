"""Rotary positions: query and key are turned where they lie, heads of both in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import rounded

Tensor = torch.Tensor

HEADS_AT_ONCE = 8


def rotary(
    query: Tensor, key: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Return query [n, heads, size] and key [n, kv_heads, size], turned in place by float32 cos_sin
    [positions, turning].
    """
    num_tokens = len(query)
    heads = query.shape[1]
    kv_heads = key.shape[1]
    half = cos_sin.shape[1] // 2
    at_once = min(HEADS_AT_ONCE, rounded(max(heads, kv_heads)))
    if num_tokens and half:
        parts = triton.cdiv(heads, at_once)
        _rotary[num_tokens, parts + triton.cdiv(kv_heads, at_once)](
            query, query.stride(0), query.stride(1), heads, parts, key, key.stride(0), key.stride(1), kv_heads,
            cos_sin, cos_sin.stride(0), positions,
            HALF=half, HEADS=at_once, BLOCK=rounded(half), INTERLEAVED=interleaved, num_warps=2,
        )  # fmt: skip
    return query, key


@triton.jit
def turn(at, at_other, cosines, sines, mine):
    """Turn pairs of numbers in memory by their angles, in float32."""
    a = tl.load(at, mask=mine, other=0.0).to(tl.float32)
    b = tl.load(at_other, mask=mine, other=0.0).to(tl.float32)
    tl.store(at, (a * cosines - b * sines).to(at.dtype.element_ty), mask=mine)
    tl.store(at_other, (b * cosines + a * sines).to(at.dtype.element_ty), mask=mine)


@triton.jit
def _rotary(
    query, query_token, query_head, heads, parts, key, key_token, key_head, kv_heads, cos_sin, cos_sin_row, positions,
    HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """A program: some heads of a token's query, or of its key."""
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
        turn(at + first[None, :], at + other[None, :], cosines, sines, mine)
    else:
        head = (part - parts) * HEADS + tl.arange(0, HEADS)
        mine = (head < kv_heads)[:, None] & (pair < HALF)[None, :]
        at = key + token * key_token + head[:, None] * key_head
        turn(at + first[None, :], at + other[None, :], cosines, sines, mine)
