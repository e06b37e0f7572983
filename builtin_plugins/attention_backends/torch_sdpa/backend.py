"""Paged attention through `scaled_dot_product_attention`: one call for all decoding sequences of
similar length.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from builtin_plugins.attention_backends.common.narrow import (
    KV_DTYPES,
    for_cache,
    from_cache,
    movable,
)
from builtin_plugins.attention_backends.torch_sdpa.plan import Bucket, Piece, Reach, StepPlan
from core.api import AttentionInputs, AttentionParams, KVSpec

HELD_SCORES: Final = 1 << 24
"""Most scores held at once by a layer that changes them in a way that no fused kernel computes."""


class TorchAttention:
    """A slot holds its key, then its value: [num_blocks, block_size, vectors, kv_heads, row_size].

    Query heads of one key-value head are queries of their own, or a stride of zero; keys are never
    repeated. Where values are parts of keys, whole keys are summed, because fused kernels want one
    size; the answer is cut at the end.
    """

    graph_support = "none"
    device_lengths = True
    kv_dtypes = KV_DTYPES
    kv_scales = True
    slot_tokens = True

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, block_size, vectors, kv_heads, row_size]."""
        return (num_blocks, block_size, spec.vectors, spec.kv_heads, spec.row_size)

    def prepare(self, inputs: AttentionInputs) -> StepPlan:
        """Return a plan that layers share."""
        return StepPlan(inputs)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: StepPlan,
    ) -> torch.Tensor:
        """Write keys and values, then compute bucket by bucket and piece by piece."""
        flat = cache.flatten(0, 1)  # [num_slots, vectors, kv_heads, row_size]
        own = key[:, None] if params.value_size is not None else torch.stack((key, value), dim=1)
        rows = for_cache(params, own, cache)
        movable(flat)[plan.slots] = rows if plan.slot_tokens is None else rows[plan.slot_tokens]
        if (
            params.kv_dtype is not None
        ):  # what a token sees does not depend on how its prompt was cut into steps
            own = from_cache(params, rows, cache, query.dtype)
        key = own[:, 0]
        value = own[:, -1]
        by_distance = params.distance_bias is not None
        held = 0 if _is_plain(params) and not by_distance else HELD_SCORES // params.heads
        reach = Reach(params.window, params.chunk, params.causal, by_distance)
        buckets, pieces = plan.view(reach, held, query.dtype)
        if len(buckets) == 1 and buckets[0].tokens is None:
            return _decode(params, query, flat, buckets[0])[..., : params.value_size]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for bucket in buckets:
            out[bucket.tokens] = _decode(params, query[bucket.tokens], flat, bucket)
        for piece in pieces:
            _prefill(params, query, key, value, flat, piece, out)
        return out[..., : params.value_size]


def _read(
    params: AttentionParams, flat: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return keys and values [n, vectors, kv_heads, head_size] as they were computed, but for what
    rounding took.
    """
    return from_cache(params, movable(flat).index_select(0, slots), flat, dtype)


def _decode(
    params: AttentionParams, query: torch.Tensor, flat: torch.Tensor, bucket: Bucket
) -> torch.Tensor:
    """Return [n, heads, head_size] for one query per sequence."""
    grouped = query.reshape(-1, params.kv_heads, params.heads // params.kv_heads, params.head_size)
    read = _read(params, flat, bucket.slots, query.dtype)
    pages = read.view(len(grouped), bucket.length, *read.shape[1:])
    parts = pages.permute(2, 0, 3, 1, 4)  # [vectors, n, kv_heads, length, head_size]
    heads = (
        params.kv_heads,
        params.heads // params.kv_heads,
        1,
    )  # the last but one are the queries here
    mask = bucket.mask
    if bucket.ahead is not None:
        bias = _distance_bias(params, bucket.ahead).view(*heads[:2], len(grouped), bucket.length)
        mask = bias.permute(2, 0, 1, 3) + (
            0.0 if mask is None else mask
        )  # [n, kv_heads, per_kv, length]
    return _attend(params, heads, grouped, parts[0], parts[-1], mask, causal=False).reshape(
        query.shape
    )


def _prefill(
    params: AttentionParams,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    flat: torch.Tensor,
    piece: Piece,
    out: torch.Tensor,
) -> None:
    """Write the piece's rows of `out`."""
    if piece.slots is None:
        key = key[piece.start : piece.end]
        value = value[piece.start : piece.end]
    else:
        parts = _read(params, flat, piece.slots, query.dtype)
        key = parts[:, 0]
        value = parts[:, -1]
    per_kv = params.heads // params.kv_heads
    shape = (piece.end - piece.start, params.kv_heads, per_kv, params.head_size)
    grouped = (
        query[piece.start : piece.end].reshape(shape).permute(1, 2, 0, 3)
    )  # [kv_heads, per_kv, n, head_size]
    key, value = (x.transpose(0, 1)[:, None].expand(-1, per_kv, -1, -1) for x in (key, value))
    mask = piece.mask
    heads = (*shape[1:3], 1, 1)
    if piece.ahead is not None:
        assert mask is not None, "where distances matter, causality is in the mask"
        mask = mask + _distance_bias(params, piece.ahead).view(*heads[:2], *piece.ahead.shape)
    found = _attend(params, heads, grouped, key, value, mask, causal=piece.causal and mask is None)
    out[piece.start : piece.end].view(shape).copy_(found.permute(2, 0, 1, 3))


def _distance_bias(params: AttentionParams, ahead: torch.Tensor) -> torch.Tensor:
    """Return what each head's scores of keys so far ahead get: [heads, *ahead.shape] float32."""
    assert params.distance_bias is not None, "distances were asked for"
    reach = params.distance_bias.shape[1] // 2
    return params.distance_bias[:, ahead.clamp(-reach, reach) + reach]


def _is_plain(params: AttentionParams) -> bool:
    return params.softcap is None and params.alibi is None and params.sinks is None


def _attend(
    params: AttentionParams,
    heads: tuple[int, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
) -> torch.Tensor:
    """Return softmax(change(query @ key.T * scale) + mask) @ value; all are [batch, heads, length,
    head_size].

    `heads` is the shape in which what is known by head meets the scores.
    """
    if _is_plain(params):
        return scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, scale=params.scale
        )
    scores = query.float() @ key.float().transpose(-1, -2) * params.scale
    if params.softcap is not None:
        scores = scores.div_(params.softcap).tanh_().mul_(params.softcap)
    if (
        params.alibi is not None
    ):  # from the newest key on: what a query's scores have in common falls out
        count = scores.shape[-1]
        scores += params.alibi.view(heads) * torch.arange(1 - count, 1, device=scores.device)
    if mask is not None:
        scores += mask
    elif causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), float("-inf"))
    if params.sinks is not None:  # one more column, whose weight goes to nothing
        sinks = params.sinks.float().view(heads).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)
