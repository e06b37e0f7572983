"""Reference paged attention in plain torch, one sequence at a time; the oracle of all backends."""

from __future__ import annotations

import torch

from builtin_plugins.attention_backends.common.quantized_kv import (
    KV_DTYPES,
    as_bytes,
    dequantize_kv,
    quantize_kv,
)
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import KVSpec


class ReferenceAttention:
    """Paged attention with blocks of [vectors, block_size, kv_heads, row_size]."""

    graph_support = "none"
    kv_dtypes = KV_DTYPES
    kv_scales = True
    slot_tokens = True

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, vectors, block_size, kv_heads, row_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.row_size)

    def prepare(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return the inputs; no plan is needed."""
        return inputs

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: AttentionInputs,
    ) -> torch.Tensor:
        """Write keys and values, then compute attention of each sequence."""
        blocks = plan.slots // plan.block_size
        offsets = plan.slots % plan.block_size
        own = key[:, None] if params.value_size is not None else torch.stack((key, value), dim=1)
        rows = quantize_kv(params, own, cache)
        stored = as_bytes(cache)
        stored[blocks, :, offsets] = rows if plan.slot_tokens is None else rows[plan.slot_tokens]
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for i, kv_len in enumerate(plan.kv_lens):
            start = plan.query_starts[i]
            end = plan.query_starts[i + 1]
            first = (
                _first_visible(params, kv_len - (end - start)) // plan.block_size
                if params.causal
                else 0
            )
            table = plan.block_table[i, first : -(-kv_len // plan.block_size)]
            rows = (
                stored[table].transpose(1, 2).flatten(0, 1)
            )  # [tokens, vectors, kv_heads, row_size]
            read = dequantize_kv(params, rows, cache, query.dtype)
            keys = read[:, 0]
            values = read[:, -1, :, : params.value_size]
            seen = kv_len - first * plan.block_size
            positions = torch.arange(kv_len - (end - start), kv_len, device=query.device)
            out[start:end] = _attend(
                params,
                query[start:end],
                keys[:seen],
                values[:seen],
                positions,
                first * plan.block_size,
            )
        return out


def _first_visible(params: AttentionParams, position: int) -> int:
    """Return the first position visible from `position`; earlier cache entries may be stale."""
    if params.window is not None:
        return max(0, position - params.window + 1)
    if params.chunk is not None:
        return position // params.chunk * params.chunk
    return 0


def _attend(
    params: AttentionParams,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    key_start: int,
) -> torch.Tensor:
    """Return [n, heads, size of a value] for one sequence; keys [m, kv_heads, head_size] begin at
    `key_start`.
    """
    per_kv = params.heads // params.kv_heads
    key = key.float().repeat_interleave(per_kv, dim=1)  # [m, heads, head_size]
    value = value.float().repeat_interleave(per_kv, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", query.float(), key) * params.scale
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    key_positions = torch.arange(key_start, key_start + len(key), device=query.device)
    distance = key_positions[None] - positions[:, None]
    hidden = (distance > 0) & params.causal
    if params.window is not None:
        hidden |= key_positions[None] <= positions[:, None] - params.window
    if params.chunk is not None:
        hidden |= key_positions[None] < (positions[:, None] // params.chunk * params.chunk)
    if params.alibi is not None:
        scores = scores + params.alibi[:, None, None] * distance
    if params.distance_bias is not None:
        max_distance = params.distance_bias.shape[1] // 2
        scores = (
            scores
            + params.distance_bias[:, distance.clamp(-max_distance, max_distance) + max_distance]
        )
    scores = scores.masked_fill(hidden, float("-inf"))
    if params.sinks is not None:  # an additional column without a value
        sinks = params.sinks.float()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(key_positions)]
    return torch.einsum("hnm,mhd->nhd", weights, value).to(query.dtype)
