"""An attention backend: writes keys and values to the paged cache and computes attention."""

from __future__ import annotations

from typing import Any

import torch

from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import KVSpec


class Acme:
    """Gathers each sequence's keys and values and attends in float32: simple, exact, slow."""

    graph_support = "none"

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [blocks, vectors, block_size, kv_heads, head_size].

        Each block holds its keys, then its values.
        """
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Any:
        """Return the cache slots of the step's tokens, and per sequence its tokens and blocks."""
        slots = (inputs.slots // inputs.block_size, inputs.slots % inputs.block_size)
        spans = zip(
            inputs.query_starts,
            inputs.query_starts[1:],
            inputs.kv_lens,
            inputs.block_table,
            strict=False,
        )
        return slots, list(spans)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Any,
    ) -> torch.Tensor:
        """Write keys and values to the cache; return attention [num_tokens, heads, value_size]."""
        (blocks, offsets), sequences = plan
        cache[blocks, 0, offsets] = key
        if params.value_size is None:  # otherwise values are a prefix of the keys
            cache[blocks, 1, offsets] = value
        block_size = cache.shape[2]
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for start, end, length, table in sequences:
            # Blocks outside every window are not read: they may belong
            # to another request.
            first = _first_visible(params, length - (end - start))
            positions = torch.arange(first, length, device=query.device)
            blocks = table[positions // block_size].long()
            offsets = positions % block_size
            keys = cache[blocks, 0, offsets].float()
            values = cache[blocks, -1, offsets, :, : params.value_size].float()
            out[start:end] = _attend_one(
                params, query[start:end].float(), keys, values, length, first
            )
        return out


def _first_visible(params: AttentionParams, position: int) -> int:
    """Return the first position visible to the token at `position`."""
    first = 0 if params.window is None else max(0, position - params.window + 1)
    return first if params.chunk is None else max(first, position - position % params.chunk)


def _attend_one(
    params: AttentionParams,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: int,
    first: int,
) -> torch.Tensor:
    group = params.heads // params.kv_heads
    keys = keys.repeat_interleave(group, 1)
    values = values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * params.scale  # [heads, queries, keys]
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    query_positions = torch.arange(length - query.shape[0], length, device=query.device)[:, None]
    key_positions = torch.arange(first, length, device=query.device)
    if params.alibi is not None:
        scores = scores + params.alibi[:, None, None] * (key_positions - query_positions)
    if params.distance_bias is not None:
        reach = params.distance_bias.shape[1] // 2
        scores = (
            scores
            + params.distance_bias[
                :, (key_positions - query_positions).clamp(-reach, reach) + reach
            ]
        )
    visible = (key_positions <= query_positions) | (
        not params.causal
    )  # encoder positions are visible everywhere
    if params.window is not None:
        visible &= key_positions > query_positions - params.window
    if params.chunk is not None:
        visible &= key_positions // params.chunk == query_positions // params.chunk
    scores = scores.masked_fill(~visible, float("-inf"))
    if params.sinks is not None:  # an extra column that takes no value
        scores = torch.cat(
            [scores, params.sinks.float()[:, None, None].expand(-1, len(query), 1)], dim=-1
        )
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(keys)], values)
