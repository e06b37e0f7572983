"""Attention of one sequence over its keys and values in plain torch: the oracle's formula."""

from __future__ import annotations

import torch

from core.model_spec.attention_params import AttentionParams


def attend_dense(
    params: AttentionParams,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    key_start: int = 0,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return [n, heads, size of a value] for one sequence; keys [m, kv_heads, head_size] begin at
    `key_start`.

    With `visible`, the keys have these positions, and tokens see the later ones, too.
    """
    per_kv = params.heads // params.kv_heads
    key = key.float().repeat_interleave(per_kv, dim=1)  # [m, heads, head_size]
    value = value.float().repeat_interleave(per_kv, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", query.float(), key) * params.scale
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    key_positions = visible
    if key_positions is None:
        key_positions = torch.arange(key_start, key_start + len(key), device=query.device)
    distance = key_positions[None] - positions[:, None]
    hidden = (distance > 0) & (params.causal and visible is None)
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


def first_visible(params: AttentionParams, position: int) -> int:
    """Return the first position visible from `position`; earlier cache entries may be stale."""
    if params.window is not None:
        return max(0, position - params.window + 1)
    if params.chunk is not None:
        return position // params.chunk * params.chunk
    return 0
