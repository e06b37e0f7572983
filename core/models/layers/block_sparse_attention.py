"""Block-sparse attention: an indexer selects blocks of keys for each KV head.

Index keys, and keys with values, are two KV groups with block tables of their own. As with single
tokens (`sparse_attention`), queries that see no more than `top_k` tokens attend to all of them, by
the attention backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.errors import ModelError
from core.model_spec.attention import BlockIndexerSpec, PooledIndexerSpec
from core.model_spec.kv import IndexKeys
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.query_batches import Queries
from core.models.layers.sparse_attention import (
    LongQueriesPlan,
    SparsePlan,
    slots_of,
)
from core.models.ops.selection import KEYS_PER_PIECE, MAX_PRODUCTS

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import AttentionSpec
    from core.model_spec.attention_params import AttentionParams
    from core.models.layers.positions import Rotary
    from core.models.layers.weights import WeightMap

MAX_GATHERED: Final = 1 << 24
"""Maximum elements of gathered keys and values, or of scores, in memory at a time."""


class BlockIndexer(nn.Module):
    """Selects blocks of keys for this rank's KV heads; keys are cached in the model's dtype."""

    def __init__(
        self,
        attention: AttentionSpec,
        hidden: int,
        kv_parts: int,
        prefix: str,
        rotary: Rotary,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`kv_parts`: ranks that the KV heads are split over."""
        super().__init__()
        spec = attention.indexer
        assert isinstance(spec, BlockIndexerSpec), "the layer has no indexer of this kind"
        self.spec = spec
        self._rotary = rotary
        self.kv_spec = _index_keys(spec, prefix, context)
        self.cache: torch.Tensor | None = None
        query = [Slice("q", attention.kv_heads * spec.size, parts=kv_parts)]
        self.query = Linear(context, weights, f"{prefix}.q_proj", hidden, query, split="rows")
        self.key = Linear(context, weights, f"{prefix}.k_proj", hidden, [Slice("k", spec.size)])
        self.query_norm = make_norm(spec.norm, spec.size, context, weights, f"{prefix}.q_norm")
        self.key_norm = make_norm(spec.norm, spec.size, context, weights, f"{prefix}.k_norm")

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: BlockIndexPlan
    ) -> torch.Tensor | None:
        """Return the blocks [n, kv_heads, top_blocks] that the long queries of the step attend to;
        None: there are none. Keys are written to the cache.
        """
        query = self.query_norm(self.query(x).view(len(x), -1, self.spec.size))
        key = self.key_norm(self.key(x).view(len(x), 1, self.spec.size))
        query, key = self._rotary(query, key, positions)
        assert self.cache is not None, "bind_kv was not called"
        return plan.select_blocks(query, key[:, 0], self.cache, self.spec)


class PooledIndexer(nn.Module):
    """Selects blocks of keys for all heads; keys are cached before their norm and RoPE."""

    def __init__(
        self,
        attention: AttentionSpec,
        hidden: int,
        kv_heads: int,
        prefix: str,
        rotary: Rotary,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`kv_heads`: those of this rank."""
        super().__init__()
        spec = attention.indexer
        assert isinstance(spec, PooledIndexerSpec), "the layer has no indexer of this kind"
        self.spec = spec
        self._kv_heads = kv_heads
        self._rotary = rotary
        self._rotate = context.ops.rotary
        self.kv_spec = _index_keys(spec, prefix, context)
        self.cache: torch.Tensor | None = None
        parts = [Slice("q", spec.heads * spec.size), Slice("k", spec.size)]
        self.both = Linear(context, weights, f"{prefix}.index_qk_proj", hidden, parts)
        norm = (spec.norm, spec.size, context, weights)
        self.query_norm = make_norm(*norm, f"{prefix}.q_layernorm")
        self.key_norm = make_norm(*norm, f"{prefix}.k_layernorm")

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: BlockIndexPlan
    ) -> torch.Tensor | None:
        """Return the blocks [n, kv_heads, top_blocks + 1] that the long queries of the step attend
        to; None: there are none. Keys are written to the cache.
        """
        both = self.both(x).view(len(x), -1, self.spec.size)
        query = self.query_norm(both[:, : self.spec.heads].contiguous())
        query, _ = self._rotary(query, query[:, :1].clone(), positions)
        assert self.cache is not None, "bind_kv was not called"
        found = plan.select_pooled(query, both[:, -1], self.cache, self.spec, self._pool)
        return None if found is None else found[:, None].expand(-1, self._kv_heads, -1)

    def _pool(self, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the key of each block [blocks, size], with RoPE at its first position."""
        pooled = self.key_norm(keys.float().mean(1).to(keys.dtype))[:, None]
        rotary = self._rotary
        both = self._rotate(pooled, pooled.clone(), rotary.cos_sin, positions, rotary.interleaved)
        return both[0][:, 0]


def _index_keys(
    spec: BlockIndexerSpec | PooledIndexerSpec, prefix: str, context: BuildContext
) -> IndexKeys:
    """Return the cache of a layer's index keys, in the model's dtype.

    Raises `ModelError` if the attention backend cannot read the keys that they select.
    """
    if context.attention is not None and not hasattr(context.attention, "read_kv"):
        raise ModelError(
            f"--attention-backend: got {type(context.attention).__name__}; expected one that "
            f"reads single keys, which {prefix} selects. Choose another backend, or lower "
            f"--max-model-len to {spec.top_k}."
        )
    dtype = dtype_name(context.dtype)
    return IndexKeys(1, spec.size, dtype, top_k=spec.top_k, selects_blocks=True)


class BlockIndexPlan(LongQueriesPlan):
    """The group of index keys in one step, for all its layers."""

    def select_blocks(
        self, query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor, spec: BlockIndexerSpec
    ) -> torch.Tensor | None:
        """Write the keys [num_tokens, size] to the cache; return the blocks [n, heads, top_blocks]
        that the long queries attend to. None: there are none.
        """
        self._write(key, cache)
        found = [self._blocks_of(each, query, cache, spec) for each in self._long]
        return torch.cat(found) if found else None

    def select_pooled(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        cache: torch.Tensor,
        spec: PooledIndexerSpec,
        pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        """Write the keys [num_tokens, size] to the cache; return the blocks [n, top_blocks + 1]
        that the long queries attend to. None: there are none.

        `pool` maps the keys [blocks, block_size, size] and first positions of blocks to keys
        [blocks, size].
        """
        self._write(key, cache)
        found = []
        for long in self._long:
            count = long.length // spec.block_size
            positions = torch.arange(count * spec.block_size, device=query.device)
            table = self._inputs.block_table[long.sequence : long.sequence + 1]
            slots = slots_of(table, positions[None], self._inputs.block_size)[0]
            rows = cache.flatten(0, 1).index_select(0, slots).view(count, spec.block_size, -1)
            keys = pool(rows, positions[:: spec.block_size]).float()
            numbers = torch.arange(count, device=query.device)
            piece = max(1, MAX_PRODUCTS // (spec.heads * count))
            for start in range(long.start, long.end, piece):
                some = query[start : min(long.end, start + piece)].float()
                seen = torch.arange(len(some), device=query.device)
                seen = seen + (long.position + start - long.start + 1)
                complete = (seen // spec.block_size)[:, None]
                scores = F.relu(some @ keys.T).sum(1).masked_fill(numbers >= complete, -1.0)
                best = scores.topk(spec.top_blocks, dim=-1).indices
                found.append(torch.cat([best, complete], dim=-1))
        return torch.cat(found) if found else None

    def _blocks_of(
        self, long: Queries, query: torch.Tensor, cache: torch.Tensor, spec: BlockIndexerSpec
    ) -> torch.Tensor:
        """Return the blocks of one sequence's long queries."""
        size = spec.block_size
        heads = query.shape[1]
        span = max(1, KEYS_PER_PIECE // size) * size
        piece = max(1, MAX_PRODUCTS // (heads * span))
        table = self._inputs.block_table[long.sequence : long.sequence + 1]
        flat = cache.flatten(0, 1)
        found = []
        for start in range(long.start, long.end, piece):
            some = query[start : min(long.end, start + piece)]
            first = long.position + start - long.start
            at = torch.arange(first, first + len(some), device=query.device)[:, None]
            rows = some.float().flatten(0, 1)
            scores = []
            for begin in range(0, first + len(some), span):
                end = min(begin + span, first + len(some))
                positions = torch.arange(begin, end, device=query.device)
                slots = slots_of(table, positions[None], self._inputs.block_size)[0]
                products = (rows @ flat.index_select(0, slots).float().T).view(*some.shape[:2], -1)
                products = products.masked_fill(positions > at[:, None], float("-inf"))
                products = F.pad(products, (0, (begin - end) % size), value=float("-inf"))
                scores.append(products.reshape(*products.shape[:-1], -1, size).amax(-1))
            blocks = torch.cat(scores, dim=-1)
            local = at // size - torch.arange(spec.local_blocks, device=query.device)
            local = local.clamp(min=0)[:, None].expand(-1, heads, -1)
            blocks = blocks.scatter(-1, local, float("inf"))
            found.append(blocks.topk(spec.top_blocks, dim=-1, sorted=False).indices)
        return torch.cat(found)


@dataclass(frozen=True, slots=True)
class SelectedBlocks:
    """Long queries of one sequence, and the blocks of keys that they attend to."""

    params: AttentionParams
    sequence: int
    """Number of the sequence in the step."""
    position: int
    """Position of the first query."""
    query: torch.Tensor
    """[n, heads, head_size]."""
    blocks: torch.Tensor
    """[n, kv_heads, top_blocks]."""
    block_size: int
    """Keys of a block."""

    @property
    def length(self) -> int:
        """Number of keys that the last query sees."""
        return self.position + len(self.query)

    def pieces(self, row_size: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield (first position, queries [n, kv_heads, group, head_size], blocks) of pieces that
        need at most `MAX_GATHERED` elements; `row_size`: elements that a query needs.
        """
        size = max(1, MAX_GATHERED // row_size)
        parts = zip(torch.split(self.query, size), torch.split(self.blocks, size), strict=True)
        for index, (query, blocks) in enumerate(parts):
            grouped = query.view(len(query), self.params.kv_heads, -1, self.params.head_size)
            yield self.position + index * size, grouped, blocks


class BlockSparsePlan(SparsePlan):
    """The group of keys and values in one step, for all its layers with an indexer."""

    def attend_blocks(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        selected: torch.Tensor | None,
        block_size: int,
    ) -> torch.Tensor:
        """Write keys and values to the cache; return attention [num_tokens, heads, head_size].

        `selected`: the blocks of `block_size` keys of the long queries (`BlockIndexPlan`).
        """
        out = self._attend_short(params, query, key, value, cache)
        done = 0
        for long in self._long:
            count = long.end - long.start
            assert selected is not None, "both groups have the same long queries"
            own = SelectedBlocks(
                params,
                long.sequence,
                long.position,
                query[long.start : long.end],
                selected[done : done + count],
                block_size,
            )
            done += count
            gathers = count * params.kv_heads * self._top_k < own.length
            attend = self._attend_gathered if gathers else self._attend_masked
            out[long.start : long.end] = attend(own, cache)
        return out

    def _attend_gathered(self, own: SelectedBlocks, cache: torch.Tensor) -> torch.Tensor:
        """Return attention of few queries [n, heads, head_size] to their own copies of keys."""
        params = own.params
        kv_heads = params.kv_heads
        device = own.query.device
        within = torch.arange(own.block_size, device=device)
        found = []
        row_size = kv_heads * self._top_k * 2 * kv_heads * params.head_size
        for first, query, blocks in own.pieces(row_size):
            positions = (blocks[..., None] * own.block_size + within).flatten(2)
            at = torch.arange(len(query), device=device) + first
            is_visible = positions <= at[:, None, None]
            positions = torch.where(is_visible, positions, 0)
            pages = self._read(own, cache, positions.flatten())
            pages = pages.reshape(*positions.shape, 2, kv_heads, -1).diagonal(dim1=1, dim2=4)
            keys, values = pages.permute(2, 0, 4, 1, 3)  # of each query, [n, kv_heads, keys, size]
            found.append(_attend(params, query, keys, values, is_visible[:, :, None]))
        return torch.cat(found).flatten(1, 2)

    def _attend_masked(self, own: SelectedBlocks, cache: torch.Tensor) -> torch.Tensor:
        """Return attention of many queries [n, heads, head_size] to the whole context, with a mask
        of the keys that they do not attend to.
        """
        params = own.params
        length = own.length
        positions = torch.arange(length, device=own.query.device)
        pages = self._read(own, cache, positions)
        keys, values = pages.permute(1, 2, 0, 3)[:, :, None]  # [kv_heads, 1, length, size]
        num_blocks = length // own.block_size + 1  # the last one may be empty
        found = []
        for first, query, blocks in own.pieces(params.heads * length):
            chosen = blocks.new_zeros(*blocks.shape[:2], num_blocks, dtype=torch.bool)
            mask = chosen.scatter(-1, blocks, value=True).repeat_interleave(own.block_size, dim=-1)
            at = positions[first : first + len(query), None]
            mask = mask[..., :length] & (positions <= at)[:, None]
            by_head = query.permute(1, 2, 0, 3)
            out = _attend(params, by_head, keys, values, mask.transpose(0, 1)[:, None])
            found.append(out.permute(2, 0, 1, 3).flatten(1, 2))
        return torch.cat(found)

    def _read(
        self, own: SelectedBlocks, cache: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Return keys and values [n, 2, kv_heads, head_size] of a sequence's positions [n]."""
        table = self._inputs.block_table[own.sequence : own.sequence + 1]
        slots = slots_of(table, positions[None], self._inputs.block_size)[0]
        found: torch.Tensor = self._backend.read_kv(own.params, cache, slots, own.query.dtype)
        return found


def _attend(
    params: AttentionParams, query: Any, keys: Any, values: Any, mask: torch.Tensor
) -> torch.Tensor:
    """Return [a, b, n, size]; keys and values may have 1 for b."""
    keys, values = (part.expand(*query.shape[:2], *part.shape[2:]) for part in (keys, values))
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=params.scale)
