"""Inputs of latent attention in one launch: keys, and the rotated parts of queries in place."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, warps
from core_kernels.triton.qk_norm_rope_cache import norm_rotate

Tensor = torch.Tensor

HEADS_AT_ONCE: Final = 16


def latent_rows(
    query: Tensor,
    latent: Tensor,
    shared: Tensor,
    rope_query: Tensor,
    weight: Tensor,
    eps: float,
    offset: float,
    cos_sin: Tensor,
    positions: Tensor,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """Return keys [n, 1, rank + size], and the end of `query` [n, heads, rank + size], where it
    writes `rope_query` [n, heads, size] after RoPE.

    A key is the RMS norm of the latent [n, rank], then `shared` [n, size] after RoPE.
    """
    count, rank = latent.shape
    heads, size = rope_query.shape[1:]
    key = latent.new_empty(count, 1, rank + size)
    half = cos_sin.shape[1] // 2
    at_once = min(HEADS_AT_ONCE, next_power_of_2(heads))
    block = next_power_of_2(rank)
    if count:
        _latent_rows[count, 1 + triton.cdiv(heads, at_once)](
            query, query.stride(0), query.stride(1), latent, latent.stride(0), shared,
            shared.stride(0), rope_query, rope_query.stride(0), rope_query.stride(1), key, heads,
            weight, eps, offset, cos_sin, cos_sin.stride(0), positions,
            RANK=rank, WHOLE=block, SIZE=size, HALF=half, HEADS=at_once,
            BLOCK=next_power_of_2(max(1, half)),
            REST=next_power_of_2(size - 2 * half) if size > 2 * half else 0,
            INTERLEAVED=interleaved, num_warps=warps(max(block, at_once * size)),
        )  # fmt: skip
    return key, query[..., rank:]


@triton.jit(do_not_specialize=["eps", "offset"])
def _latent_rows(
    query, query_token, query_head, latent, latent_row, shared, shared_row, rope_query, rope_token,
    rope_head, key, heads, weight, eps, offset, cos_sin, cos_sin_row, positions,
    RANK: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One program: a token's key, or some heads of its query."""
    token = tl.program_id(0).to(tl.int64)
    row = cos_sin + tl.load(positions + token) * cos_sin_row
    pair = tl.arange(0, BLOCK)
    cosines = tl.load(row + pair, mask=pair < HALF, other=0.0)[None, :]
    sines = tl.load(row + HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        element = tl.arange(0, WHOLE)
        mine = element < RANK
        wide = tl.load(latent + token * latent_row + element, mask=mine, other=0.0).to(tl.float32)
        scale = tl.load(weight + element, mask=mine, other=0.0).to(tl.float32) + offset
        wide *= tl.rsqrt(tl.sum(wide * wide) / RANK + eps) * scale
        own = key + token * (RANK + SIZE)
        tl.store(own + element, wide.to(key.dtype.element_ty), mask=mine)
        one = tl.arange(0, 1)
        norm_rotate(
            shared + token * shared_row + one, own + RANK + one, None, one < 1, eps, offset,
            cosines, sines, SIZE, HALF, BLOCK, REST, INTERLEAVED,
        )  # fmt: skip
    else:
        head = (tl.program_id(1) - 1) * HEADS + tl.arange(0, HEADS)
        norm_rotate(
            rope_query + token * rope_token + head * rope_head,
            query + token * query_token + head * query_head + RANK, None, head < heads, eps, offset,
            cosines, sines, SIZE, HALF, BLOCK, REST, INTERLEAVED,
        )  # fmt: skip
