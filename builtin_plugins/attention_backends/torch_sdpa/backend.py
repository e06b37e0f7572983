"""Paged attention by `scaled_dot_product_attention`, one call per group of similar sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from builtin_plugins.attention_backends.common.look_ahead import LookAheadPlan, attend_spans
from builtin_plugins.attention_backends.common.quantized_kv import (
    KV_DTYPES,
    as_bytes,
    dequantize_kv,
    quantize_kv,
)
from builtin_plugins.attention_backends.torch_sdpa.plan import (
    AttentionSpan,
    Bucket,
    Piece,
    StepPlan,
)
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams, LookAheadSpan
from core.model_spec.kv import KVSpec

MAX_SCORES: Final = 1 << 24
"""Maximum attention scores in memory for layers that no fused kernel supports."""


class TorchAttention:
    """Paged attention in torch with slots of key, then value.

    The cache is [num_blocks, block_size, vectors, kv_heads, row_size]. Keys are never repeated for
    grouped query heads. With latent keys, fused kernels need equal sizes, so whole keys are summed
    and the output is truncated to the value size.
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
        """Return the plan shared by the layers of a group."""
        return StepPlan(inputs)

    def look_ahead(self, plan: StepPlan, spans: Sequence[LookAheadSpan]) -> LookAheadPlan:
        """Return the plan with spans of tokens that see ahead."""
        inputs = plan.inputs
        where = inputs.query_starts, inputs.kv_lens, inputs.block_table, inputs.block_size
        return LookAheadPlan(plan, *where, spans)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: StepPlan | LookAheadPlan,
    ) -> torch.Tensor:
        """Write keys and values, then compute decode buckets and prefill pieces."""
        if isinstance(plan, LookAheadPlan):
            out = self.attend(params, query, key, value, cache, plan.plan)
            read = partial(self.read_kv, params, cache, dtype=query.dtype)
            return attend_spans(params, query, plan, read, out)
        flat = cache.flatten(0, 1)  # [num_slots, vectors, kv_heads, row_size]
        own = key[:, None] if params.value_size is not None else torch.stack((key, value), dim=1)
        rows = quantize_kv(params, own, cache)
        as_bytes(flat)[plan.slots] = rows if plan.slot_tokens is None else rows[plan.slot_tokens]
        if (
            params.kv_dtype is not None
        ):  # results must not depend on how the prompt was split into steps
            own = dequantize_kv(params, rows, cache, query.dtype)
        key = own[:, 0]
        value = own[:, -1]
        by_distance = params.distance_bias is not None
        max_scores = 0 if _is_plain(params) and not by_distance else MAX_SCORES // params.heads
        span = AttentionSpan(params.window, params.chunk, params.causal, by_distance)
        buckets, pieces = plan.view(span, max_scores, query.dtype)
        if len(buckets) == 1 and buckets[0].tokens is None:
            return _decode(params, query, flat, buckets[0])[..., : params.value_size]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for bucket in buckets:
            out[bucket.tokens] = _decode(params, query[bucket.tokens], flat, bucket)
        for piece in pieces:
            _prefill(params, query, key, value, flat, piece, out)
        return out[..., : params.value_size]

    def read_kv(
        self,
        params: AttentionParams,
        cache: torch.Tensor,
        slots: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return keys and values [n, vectors, kv_heads, head_size] of slots [n], in `dtype`."""
        return _read(params, cache.flatten(0, 1), slots, dtype)


def _read(
    params: AttentionParams, flat: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return dequantized keys and values of slots, [n, vectors, kv_heads, head_size]."""
    return dequantize_kv(params, as_bytes(flat).index_select(0, slots), flat, dtype)


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
    )  # shape of per-head values in the scores
    mask = bucket.mask
    if bucket.offsets is not None:
        bias = _distance_bias(params, bucket.offsets).view(*heads[:2], len(grouped), bucket.length)
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
    if piece.offsets is not None:
        assert mask is not None, "with a distance bias, causality is in the mask"
        mask = mask + _distance_bias(params, piece.offsets).view(*heads[:2], *piece.offsets.shape)
    found = _attend(params, heads, grouped, key, value, mask, causal=piece.causal and mask is None)
    out[piece.start : piece.end].view(shape).copy_(found.permute(2, 0, 1, 3))


def _distance_bias(params: AttentionParams, offsets: torch.Tensor) -> torch.Tensor:
    """Return the bias of each head for key offsets `offsets`, [heads, *offsets.shape] float32."""
    assert params.distance_bias is not None, "the layer has no distance bias"
    max_distance = params.distance_bias.shape[1] // 2
    return params.distance_bias[:, offsets.clamp(-max_distance, max_distance) + max_distance]


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
    """Return softmax(query @ key.T * scale + mask) @ value, with softcap, ALiBi and sinks.

    Tensors are [batch, heads, length, head_size]. `heads` is the broadcast shape of per-head
    values.
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
    ):  # relative to the newest key; a constant per query cancels in the softmax
        count = scores.shape[-1]
        scores += params.alibi.view(heads) * torch.arange(1 - count, 1, device=scores.device)
    if mask is not None:
        scores += mask
    elif causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), float("-inf"))
    if params.sinks is not None:  # an additional column without a value
        sinks = params.sinks.float().view(heads).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)
