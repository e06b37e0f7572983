"""Attention in torch with fixed shapes, for graph capture: every token is its own sequence.

Slow and simple: attends over every key that a block table has room for. Equal to `reference`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.api import Entry, hookimpl
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import CrossAttention, KVSpec


@dataclass(frozen=True)
class Plan:
    """One group in one step, by token."""

    table: torch.Tensor
    """[num_tokens, blocks]"""
    lengths: torch.Tensor
    """[num_tokens]: keys up to the token's own; of cross layers, all there are."""
    slots: torch.Tensor
    block_size: int

    def to_static(self, max_len: int) -> Plan:
        """Return a copy with static buffers, up to `max_len` tokens."""
        num_tokens, width = self.table.shape
        table = self.table.new_zeros(num_tokens, max(width, -(-max_len // self.block_size) + 1))
        table[:, :width] = self.table
        return Plan(table, self.lengths.clone(), self.slots.clone(), self.block_size)

    to_static_for_any = to_static

    def copy_from(self, other: Plan) -> None:
        """Copy a step with as many tokens."""
        self.table[:, : other.table.shape[1]].copy_(other.table)
        self.lengths.copy_(other.lengths)
        self.slots.copy_(other.slots)


class StillAttention:
    """A slot has its key, then its value: [num_blocks, block_size, vectors, kv_heads,
    head_size].
    """

    graph_support = "full"

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of a cache."""
        return (num_blocks, block_size, spec.vectors, spec.kv_heads, spec.row_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Return each token's block table and visible range."""
        starts = inputs.query_starts
        counts = torch.tensor(starts).diff()
        rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
        lengths = torch.tensor(inputs.kv_lens)[rows]
        if not isinstance(inputs.spec, CrossAttention):
            later = torch.tensor(starts[1:])[rows] - 1 - torch.arange(starts[-1])
            lengths = lengths - later
        return Plan(inputs.block_table[rows].long(), lengths, inputs.slots, inputs.block_size)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """Write keys and values, then attend over each token's whole table with a mask."""
        own = key[:, None] if params.value_size is not None else torch.stack((key, value), dim=1)
        cache.flatten(0, 1).index_copy_(0, plan.slots, own.to(cache.dtype))
        read = (
            cache[plan.table].flatten(1, 2).float()
        )  # [num_tokens, keys, vectors, kv_heads, head_size]
        per_kv = params.heads // params.kv_heads
        keys, values = (
            part.repeat_interleave(per_kv, dim=2) for part in (read[:, :, 0], read[:, :, -1])
        )
        scores = torch.einsum("thd,tkhd->htk", query.float(), keys) * params.scale
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        positions = torch.arange(keys.shape[1])
        newest = plan.lengths[:, None] - 1
        ahead = positions - newest  # [num_tokens, keys]
        hidden = ahead > 0
        if params.window is not None:
            hidden = hidden | (ahead <= -params.window)
        if params.chunk is not None:
            hidden = hidden | (positions < newest // params.chunk * params.chunk)
        if params.alibi is not None:
            scores = scores + params.alibi[:, None, None] * ahead
        if params.distance_bias is not None:
            reach = params.distance_bias.shape[1] // 2
            scores = scores + params.distance_bias[:, ahead.clamp(-reach, reach) + reach]
        scores = scores.masked_fill(hidden, float("-inf"))
        if params.sinks is not None:
            sinks = params.sinks.float()[:, None, None].expand(-1, len(query), 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
        values = values.masked_fill(
            hidden[..., None, None], 0.0
        )  # what padding left there may be no number
        return torch.einsum("htk,tkhd->thd", weights, values)[..., : params.value_size].to(
            query.dtype
        )


@hookimpl
def engine_attention_backends() -> list[Entry]:
    return [Entry("still", StillAttention, "shapes that no length changes", priority=-100)]
