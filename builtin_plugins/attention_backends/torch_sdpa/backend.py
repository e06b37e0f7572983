"""Paged attention through `scaled_dot_product_attention`: one call for all decoding sequences of similar length."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from builtin_plugins.attention_backends.torch_sdpa.plan import Bucket, Piece, Reach, StepPlan
from core.api import AttentionInputs, AttentionParams, KVSpec

CAPPED_ELEMENTS: Final = 1 << 24
"""Most scores held at once by a layer with capped scores, which no fused kernel computes."""


class TorchAttention:
    """A slot holds its key, then its value: [num_blocks, block_size, 2, kv_heads, head_size].

    Query heads of one key-value head are queries of their own, or a stride of zero; keys are never repeated.
    """

    graph_support = "none"

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, block_size, 2, kv_heads, head_size]."""
        return (num_blocks, block_size, 2, spec.kv_heads, spec.head_size)

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
        flat = cache.flatten(0, 1)  # [num_slots, 2, kv_heads, head_size]
        flat[plan.slots] = torch.stack((key, value), dim=1)
        capped = 0 if params.softcap is None else CAPPED_ELEMENTS // params.heads
        buckets, pieces = plan.view(Reach(params.window, params.chunk), capped)
        if len(buckets) == 1 and buckets[0].tokens is None:
            return _decode(params, query, flat, buckets[0])
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for bucket in buckets:
            out[bucket.tokens] = _decode(params, query[bucket.tokens], flat, bucket)
        for piece in pieces:
            _prefill(params, query, key, value, flat, piece, out)
        return out


def _decode(params: AttentionParams, query: torch.Tensor, flat: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Return [n, heads, head_size] for one query per sequence."""
    grouped = query.reshape(-1, params.kv_heads, params.heads // params.kv_heads, params.head_size)
    pages = flat.index_select(0, bucket.slots).view(len(grouped), bucket.length, *flat.shape[1:])
    key, value = pages.permute(2, 0, 3, 1, 4).unbind(0)  # [n, kv_heads, length, head_size]
    return _attend(params, grouped, key, value, bucket.mask, causal=False).reshape(query.shape)


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
        key, value = key[piece.start : piece.end], value[piece.start : piece.end]
    else:
        key, value = flat.index_select(0, piece.slots).unbind(1)
    per_kv = params.heads // params.kv_heads
    shape = (piece.end - piece.start, params.kv_heads, per_kv, params.head_size)
    grouped = query[piece.start : piece.end].reshape(shape).permute(1, 2, 0, 3)  # [kv_heads, per_kv, n, head_size]
    key, value = (x.transpose(0, 1)[:, None].expand(-1, per_kv, -1, -1) for x in (key, value))
    found = _attend(params, grouped, key, value, piece.mask, causal=piece.mask is None)
    out[piece.start : piece.end].view(shape).copy_(found.permute(2, 0, 1, 3))


def _attend(
    params: AttentionParams,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
) -> torch.Tensor:
    """Return softmax(cap(query @ key.T * scale) + mask) @ value; all are [batch, heads, length, head_size]."""
    if params.softcap is None:
        return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=params.scale)
    scores = query.float() @ key.float().transpose(-1, -2) * (params.scale / params.softcap)
    scores = scores.tanh_().mul_(params.softcap)
    if mask is not None:
        scores += mask
    elif causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), float("-inf"))
    return (scores.softmax(dim=-1) @ value.float()).to(query.dtype)
