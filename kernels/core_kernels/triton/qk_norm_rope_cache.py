"""Fused QK norm, rotary embedding and KV cache write in one launch.

The cache layout is that of `block_copy`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, warps

Tensor = torch.Tensor

HEADS_AT_ONCE = 8


def write_qk_norm_rope(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    eps: float,
    offset: float,
    cos_sin: Tensor,
    positions: Tensor,
    interleaved: bool,
    cache: Tensor,
    slots: Tensor,
) -> None:
    """Apply QK norm (weights [size] in `norms`) and RoPE to query in place and write key and value.

    query is [n, heads, size]; key [n, kv_heads, size] gets the same and is written with value to
    `slots` int64 [n]. The normed values are next_power_of_2 before the rotation, as between the ops
    `rms_norm` and `rotary`.
    """
    num_tokens, heads, size = query.shape
    kv_heads = key.shape[1]
    half = cos_sin.shape[1] // 2
    if not num_tokens:
        return
    at_once = min(HEADS_AT_ONCE, next_power_of_2(max(heads, kv_heads)))
    parts = triton.cdiv(heads, at_once)
    kv_parts = triton.cdiv(kv_heads, at_once)
    block = next_power_of_2(half)
    rest = next_power_of_2(size - 2 * half) if size > 2 * half else 0
    _write_qk_norm_rope[num_tokens, parts + 2 * kv_parts](
        query, query.stride(0), query.stride(1), heads, parts, key, key.stride(0), key.stride(1),
        kv_heads, kv_parts,
        value, value.stride(0), value.stride(1), *norms, eps, offset, cos_sin, cos_sin.stride(0),
        positions,
        cache, cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3), slots,
        BLOCK_SIZE=cache.shape[2], SIZE=size, HALF=half, HEADS=at_once, BLOCK=block, REST=rest,
        WHOLE=next_power_of_2(size),
        INTERLEAVED=interleaved, num_warps=warps(at_once * next_power_of_2(size)),
    )  # fmt: skip


@triton.jit(do_not_specialize=["eps", "offset"])
def _write_qk_norm_rope(
    query, query_token, query_head, heads, parts, key, key_token, key_head, kv_heads, kv_parts,
    value, value_token, value_head, query_norm, key_norm, eps, offset, cos_sin, cos_sin_row,
    positions,
    cache, cache_block, cache_vector, cache_slot, cache_head, slots,
    BLOCK_SIZE: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr, WHOLE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One program: some heads of a token's query, key or value."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slots + token)
    to = cache + slot // BLOCK_SIZE * cache_block + slot % BLOCK_SIZE * cache_slot
    if part >= parts + kv_parts:
        head = (part - parts - kv_parts) * HEADS + tl.arange(0, HEADS)
        element = tl.arange(0, WHOLE)
        mine = (head < kv_heads)[:, None] & (element < SIZE)[None, :]
        read = tl.load(
            value + token * value_token + head[:, None] * value_head + element[None, :], mask=mine
        )
        at = to + cache_vector + head[:, None] * cache_head + element[None, :]
        tl.store(at, read.to(cache.dtype.element_ty), mask=mine)
    else:
        row = cos_sin + tl.load(positions + token) * cos_sin_row
        pair = tl.arange(0, BLOCK)
        cosines = tl.load(row + pair, mask=pair < HALF, other=0.0)[None, :]
        sines = tl.load(row + HALF + pair, mask=pair < HALF, other=0.0)[None, :]
        if part < parts:
            head = part * HEADS + tl.arange(0, HEADS)
            own = query + token * query_token + head * query_head
            norm_rotate(
                own,
                own,
                query_norm,
                head < heads,
                eps,
                offset,
                cosines,
                sines,
                SIZE,
                HALF,
                BLOCK,
                REST,
                INTERLEAVED,
            )
        else:
            head = (part - parts) * HEADS + tl.arange(0, HEADS)
            own = key + token * key_token + head * key_head
            at = to + head * cache_head
            norm_rotate(
                own,
                at,
                key_norm,
                head < kv_heads,
                eps,
                offset,
                cosines,
                sines,
                SIZE,
                HALF,
                BLOCK,
                REST,
                INTERLEAVED,
            )


@triton.jit
def norm_rotate(
    own, to, norm, mine, eps, offset, cosines, sines,
    SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Read heads at `own`, apply norm and rotation, and write to `to`; each thread writes what it
    read.
    """
    pair = tl.arange(0, BLOCK)
    if INTERLEAVED:
        first = 2 * pair
        other = first + 1
    else:
        first = pair
        other = pair + HALF
    here = mine[:, None] & (pair < HALF)[None, :]
    a = tl.load(own[:, None] + first[None, :], mask=here, other=0.0).to(tl.float32)
    b = tl.load(own[:, None] + other[None, :], mask=here, other=0.0).to(tl.float32)
    squares = tl.sum(a * a, 1) + tl.sum(b * b, 1)
    if REST > 0:
        element = 2 * HALF + tl.arange(0, REST)
        there = mine[:, None] & (element < SIZE)[None, :]
        passing = tl.load(own[:, None] + element[None, :], mask=there, other=0.0).to(tl.float32)
        squares += tl.sum(passing * passing, 1)
    if norm is not None:
        factor = tl.rsqrt(squares / SIZE + eps)[:, None]
        a *= (
            factor
            * (tl.load(norm + first, mask=pair < HALF, other=0.0).to(tl.float32) + offset)[None, :]
        )
        b *= (
            factor
            * (tl.load(norm + other, mask=pair < HALF, other=0.0).to(tl.float32) + offset)[None, :]
        )
        a = a.to(own.dtype.element_ty).to(tl.float32)
        b = b.to(own.dtype.element_ty).to(tl.float32)
        if REST > 0:
            passing *= (
                factor
                * (tl.load(norm + element, mask=element < SIZE, other=0.0).to(tl.float32) + offset)[
                    None, :
                ]
            )
    kind = to.dtype.element_ty
    tl.store(to[:, None] + first[None, :], (a * cosines - b * sines).to(kind), mask=here)
    tl.store(to[:, None] + other[None, :], (b * cosines + a * sines).to(kind), mask=here)
    if REST > 0:
        tl.store(to[:, None] + element[None, :], passing.to(kind), mask=there)
