"""DeepSeek V4's attention: a window of keys, compressed earlier keys, and attention sinks.

The cache has plain rows. Those of the last tokens hold a key and what is summed to compressed keys;
compressed keys have rows of their own, one for several tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from core.model_spec.kv import IndexKeys, SlidingRows
from core.models.dtypes import dtype_name
from core.models.layers.compressor import Compressor
from core.models.layers.linear import Linear, Slice, UnpackedWeight
from core.models.layers.norm import make_norm
from core.models.layers.query_batches import SeenRows
from core.models.layers.weights import WeightMap, assign_weight, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import CompressedAttentionSpec, SelectorSpec
    from core.models.layers.positions import Rotary
    from core.models.layers.query_batches import QueryBatch
    from core.models.layers.row_cache import RowsPlan

MIN_BLOCK_SIZE: Final = 16
"""Smallest block of compressed keys, in tokens."""


class CompressedAttention(nn.Module):
    """Attention with heads split over ranks; every rank caches the whole keys."""

    source = None
    """Keys are never shared between layers."""

    def __init__(
        self,
        spec: CompressedAttentionSpec,
        hidden: int,
        prefix: str,
        rotary: Rotary,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._rotary = rotary
        self._rotate = context.ops.rotary
        self.heads = context.group.share(spec.heads, "num_attention_heads")
        size = spec.head_size
        parts = [
            Slice("key", size, f"{prefix}.wkv"),
            Slice("query", spec.query_rank, f"{prefix}.wq_a"),
        ]
        self.down = Linear(context, weights, parts[0].prefix, hidden, parts)
        self.key_norm = make_norm(spec.norm, size, context, weights, f"{prefix}.norm")
        self.latent_norm = make_norm(
            spec.norm, spec.query_rank, context, weights, f"{prefix}.q_norm"
        )
        rows = [Slice("q", spec.heads * size)]
        self.query = Linear(context, weights, f"{prefix}.wq_b", spec.query_rank, rows, split="rows")
        self.query_norm = make_norm(replace(spec.norm, weight=False), size, context, weights, "")
        self._expect_output(hidden, prefix, context, weights)
        self.compressed: CompressedKeys | None = None
        if spec.rate:
            self.compressed = CompressedKeys(spec, hidden, prefix, rotary, context, weights)
        further = self.compressed.row_size if self.compressed is not None else 0
        window = max(spec.window, 0 if self.compressed is None else self.compressed.span)
        dtype = dtype_name(context.dtype)
        self.kv_spec = SlidingRows(1, size + further, dtype, window=window)
        self.cache: torch.Tensor | None = None

    def _expect_output(
        self, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Expect the sinks, and the output projections of groups of heads and of their results."""
        spec = self.spec
        group = context.group
        self.sinks = empty_parameter(self.heads, dtype=torch.float32)
        sinks = self.sinks.data
        weights.add(
            f"{prefix}.attn_sink",
            (spec.heads,),
            lambda tensor: copy_weight(sinks, group.cut(tensor, 0)),
        )
        groups = group.share(spec.groups, "o_groups")
        width = spec.heads * spec.head_size // spec.groups
        self.group_out = empty_parameter(groups, spec.out_rank, width, dtype=context.dtype)
        rows = spec.groups * spec.out_rank
        self.group_weight = UnpackedWeight(
            context,
            weights,
            f"{prefix}.wo_a",
            (rows, width),
            group.own(rows),
            lambda own: copy_weight(self.group_out.data, own.view_as(self.group_out)),
        )
        out = [Slice("out", hidden)]
        self.out = Linear(context, weights, f"{prefix}.wo_b", rows, out, split="columns")

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        plan: RowsPlan,
        compressed_plan: RowsPlan | None = None,
    ) -> torch.Tensor:
        """Return the attention output [n, hidden]; keys are written to the cache."""
        spec = self.spec
        assert self.cache is not None, "bind_kv was not called"
        down = self.down(x)
        latent = self.latent_norm(down[:, self.down.slices["query"]])
        query = self.query_norm(self.query(latent).view(-1, self.heads, spec.head_size))
        key = self.key_norm(down[:, self.down.slices["key"]])[:, None]
        rotated = self._rotate(
            query[..., -spec.rope.size :],
            key[..., -spec.rope.size :],
            self._rotary.cos_sin,
            positions,
            spec.rope.interleaved,
        )
        query = torch.cat([query[..., : -spec.rope.size], rotated[0]], dim=-1)
        key = torch.cat([key[..., : -spec.rope.size], rotated[1]], dim=-1)[:, 0]
        if self.compressed is None:
            plan.write(self.cache, key[plan.tokens])
            out = self._attend(query, None, plan, compressed_plan)
        else:
            assert compressed_plan is not None, "compressed keys have a group of their own"
            rows = torch.cat([key, self.compressed.project(x)], dim=-1)
            plan.write(self.cache, rows[plan.tokens])
            self.compressed.update(self.cache, plan, compressed_plan)
            selecting = self.compressed.queries(x, latent, positions)
            out = self._attend(query, selecting, plan, compressed_plan)
        return self._project(out, positions)

    def _project(self, out: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the output of heads [n, heads, head_size], rotated back and projected."""
        size = self.spec.rope.size
        cos, sin = self._rotary.cos_sin[positions].chunk(2, -1)
        rows = torch.arange(len(out), device=out.device)
        back = torch.cat([cos, -sin], dim=-1)
        end = out[..., -size:]
        end, _ = self._rotate(end, end[:, :0], back, rows, self.spec.rope.interleaved)
        out = torch.cat([out[..., :-size], end], dim=-1)
        grouped = out.reshape(len(out), len(self.group_out), -1).transpose(0, 1)
        grouped = torch.bmm(grouped, self.group_out.transpose(1, 2)).transpose(0, 1)
        return self.out(grouped.flatten(1))  # type: ignore[no-any-return]

    def _attend(
        self,
        query: torch.Tensor,
        selecting: tuple[torch.Tensor, torch.Tensor] | None,
        plan: RowsPlan,
        compressed_plan: RowsPlan | None,
    ) -> torch.Tensor:
        """Return the output of all heads; the queries of all sequences are taken in batches."""
        spec = self.spec
        index_heads = 0 if selecting is None else selecting[0].shape[1]
        seen = SeenRows(
            spec.window,
            max(self.heads, index_heads),
            spec.head_size,
            rate=0 if self.compressed is None else spec.rate,
            top_k=0 if spec.selector is None else spec.selector.top_k,
        )
        out = torch.zeros_like(query)
        for batch in plan.batches(seen, compressed_plan):
            found = self._attend_batch(batch, query, selecting, compressed_plan)
            out[batch.tokens] = found.to(out.dtype)
        return out

    def _attend_batch(
        self,
        batch: QueryBatch,
        query: torch.Tensor,
        selecting: tuple[torch.Tensor, torch.Tensor] | None,
        compressed_plan: RowsPlan | None,
    ) -> torch.Tensor:
        """Return the output [s, n, heads, head_size] of a batch of queries, in float32."""
        spec = self.spec
        assert self.cache is not None
        own = query[batch.tokens].float() * spec.head_size**-0.5
        keys = self.cache.flatten(0, 1)[batch.slots][..., : spec.head_size].float()
        hidden = batch.is_hidden[:, :, None]
        scores = [_products(own, keys.mT).masked_fill(hidden, float("-inf"))]
        values = [keys]
        if self.compressed is not None and batch.complete is not None:
            assert compressed_plan is not None
            far, unseen = self.compressed.visible(batch, selecting, compressed_plan)
            found = _products(own, far.mT)
            scores.append(found.masked_fill(unseen[:, :, None], float("-inf")))
            values.append(far)
        sinks = self.sinks[:, None].expand(*own.shape[:3], 1)
        weights = torch.cat([*scores, sinks], dim=-1).softmax(-1)
        parts = torch.split(weights, [*(part.shape[-1] for part in scores), 1], dim=-1)
        out = _products(parts[0], values[0])
        return out if len(values) == 1 else out + _products(parts[1], values[1])


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b for a [s, n, heads, k], and b [s, k, m] of a sequence or [s, n, k, m] of a
    query.
    """
    if b.dim() == a.dim():
        return a @ b
    return torch.unflatten(a.flatten(1, 2) @ b, 1, a.shape[1:3])


class CompressedKeys(nn.Module):
    """The compressed keys of a layer, with the index keys that select among them."""

    def __init__(
        self,
        spec: CompressedAttentionSpec,
        hidden: int,
        prefix: str,
        rotary: Rotary,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._rotary = rotary
        self._rotate = context.ops.rotary
        self._select_tokens = context.ops.select_tokens
        selector = spec.selector
        self.keys = Compressor(
            (hidden, spec.head_size),
            spec.rate,
            spec.norm,
            f"{prefix}.compressor",
            context,
            weights,
            overlaps=selector is not None,
        )
        self.selector: Selector | None = None
        if selector is not None:
            self.selector = Selector(selector, spec, hidden, f"{prefix}.indexer", context, weights)
        self.span = self.keys.span
        dtype = dtype_name(context.dtype)
        self.row_size = sum(part.row_size for part in self._parts)
        """Elements cached per token, until they are summed."""
        self.kv_spec = IndexKeys(
            1,
            spec.head_size + (0 if selector is None else selector.size),
            dtype,
            top_k=0 if selector is None else selector.top_k,
            rate=spec.rate,
            block_size=spec.rate * max(1, MIN_BLOCK_SIZE // spec.rate),
        )
        self.cache: torch.Tensor | None = None

    @property
    def _parts(self) -> tuple[Compressor, ...]:
        return (self.keys,) if self.selector is None else (self.keys, self.selector.keys)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is summed to compressed keys, [n, row_size]."""
        return torch.cat([part.project(x) for part in self._parts], dim=-1)

    def update(self, recent: torch.Tensor, plan: RowsPlan, own_plan: RowsPlan) -> None:
        """Write the compressed keys that this step completes. `recent`: the last tokens' rows."""
        assert self.cache is not None, "bind_kv was not called"
        if not len(own_plan.tokens):
            return
        ends = own_plan.positions
        before = torch.arange(1 - self.span, 1, device=ends.device)
        numbers = (ends[:, None] + before).clamp(min=0)
        rows = plan.gather(recent, own_plan.owners, numbers)
        sizes = [part.row_size for part in self._parts]
        pieces = torch.split(rows[..., self.spec.head_size :], sizes, dim=-1)
        starts = ends - self.spec.rate + 1
        size = self.spec.rope.size
        sums = []
        for part, piece in zip(self._parts, pieces, strict=True):
            total = part(piece, ends)[:, None]
            rotated = self._rotated(total[..., -size:], starts)
            sums.append(torch.cat([total[..., :-size], rotated], dim=-1)[:, 0])
        own_plan.write(self.cache, torch.cat(sums, dim=-1))

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos_sin = self._rotary.cos_sin
        rope = self.spec.rope
        return self._rotate(x, x[:, :0], cos_sin, positions, rope.interleaved)[0]

    def queries(
        self, x: torch.Tensor, latent: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the selector's queries and the weights of its heads; None without a selector."""
        if self.selector is None:
            return None
        query, head_weights = self.selector(x, latent)
        size = self.spec.rope.size
        rotated = self._rotated(query[..., -size:], positions)
        return torch.cat([query[..., :-size], rotated], dim=-1), head_weights

    def visible(
        self,
        batch: QueryBatch,
        selecting: tuple[torch.Tensor, torch.Tensor] | None,
        plan: RowsPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return compressed keys of a batch, and which of them its queries do not see.

        The keys are [s, k, head_size] or, where they are selected, [s, n, top_k, head_size], in
        float32; the mask is [s, n, k] or [s, n, top_k].
        """
        assert self.cache is not None
        size = self.spec.head_size
        slots = batch.far_slots
        unseen = batch.is_far_hidden
        if slots is None or unseen is None:
            assert selecting is not None
            assert batch.complete is not None
            chosen = self._select(batch, selecting, plan)
            slots = plan.slots(batch.sequences, chosen.flatten(1)).view_as(chosen)
            unseen = chosen >= batch.complete[..., None]
        return self.cache.flatten(0, 1)[slots][..., :size].float(), unseen

    def _select(
        self, batch: QueryBatch, selecting: tuple[torch.Tensor, torch.Tensor], plan: RowsPlan
    ) -> torch.Tensor:
        """Return the numbers [s, n, top_k] of the keys that each query sees."""
        spec = self.spec
        assert self.cache is not None
        assert batch.complete is not None
        assert spec.selector is not None
        index_keys = self.cache[..., spec.head_size :]
        query, head_weights = (part[batch.tokens] for part in selecting)
        found = [
            self._select_tokens(
                query[index],
                head_weights[index],
                index_keys,
                plan.table(each.sequence, each.length // spec.rate),
                batch.complete[index],
                spec.selector.top_k,
            )
            for index, each in enumerate(batch.members)
        ]
        return torch.stack(found).long()


class Selector(nn.Module):
    """Index keys, and the queries that score them; every rank computes all heads."""

    def __init__(
        self,
        selector: SelectorSpec,
        spec: CompressedAttentionSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._spec = selector
        self._linear = context.ops.linear
        self.keys = Compressor(
            (hidden, selector.size),
            spec.rate,
            spec.norm,
            f"{prefix}.compressor",
            context,
            weights,
            overlaps=True,
        )
        rows = [Slice("q", selector.heads * selector.size)]
        self.query = Linear(context, weights, f"{prefix}.wq_b", spec.query_rank, rows)
        self.head_weights = empty_parameter(selector.heads, hidden, dtype=torch.float32)
        weights.add(
            f"{prefix}.weights_proj.weight",
            self.head_weights.shape,
            lambda tensor: assign_weight(self.head_weights, tensor),
        )

    def forward(self, x: torch.Tensor, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [n, heads, size] before RoPE, and the float32 weights of heads."""
        spec = self._spec
        query = self.query(latent).view(-1, spec.heads, spec.size)
        scale = (spec.heads * spec.size) ** -0.5
        return query, self._linear(x.float(), self.head_weights) * scale
