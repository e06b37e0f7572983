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
from core.models.layers.compressor import Compressor
from core.models.layers.linear import Linear, Slice, UnpackedWeight
from core.models.layers.norm import make_norm
from core.models.layers.weights import WeightMap, assign_weight, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import CompressedAttentionSpec, SelectorSpec
    from core.models.layers.positions import Rotary
    from core.models.layers.row_cache import Queries, RowsPlan

MAX_SCORES: Final = 1 << 23
"""Maximum scores in memory at a time."""
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
        dtype = str(context.dtype).removeprefix("torch.")
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
        """Return the output of all heads; the queries of each sequence are taken in pieces."""
        out = torch.zeros_like(query)
        for each in plan.sequences:
            rate = self.spec.rate
            length = each.position + each.end - each.start
            widest = self.spec.window + (length // rate if rate else 0)
            heads = max(self.heads, 0 if selecting is None else selecting[0].shape[1])
            piece = max(1, MAX_SCORES // (heads * widest))
            for start in range(each.start, each.end, piece):
                some = each._replace(
                    start=start,
                    end=min(each.end, start + piece),
                    position=each.position + start - each.start,
                )
                found = self._attend_piece(some, query, selecting, plan, compressed_plan)
                out[some.start : some.end] = found.to(out.dtype)
        return out

    def _attend_piece(
        self,
        some: Queries,
        query: torch.Tensor,
        selecting: tuple[torch.Tensor, torch.Tensor] | None,
        plan: RowsPlan,
        compressed_plan: RowsPlan | None,
    ) -> torch.Tensor:
        """Return the output [n, heads, head_size] of some queries of one sequence, in float32."""
        spec = self.spec
        assert self.cache is not None
        own = query[some.start : some.end].float() * spec.head_size**-0.5
        end = some.position + len(own)
        at = torch.arange(some.position, end, device=query.device)[:, None]
        oldest = max(0, some.position - spec.window + 1)
        keys = plan.read(self.cache, some.sequence, oldest, end)[:, : spec.head_size].float()
        seen = torch.arange(oldest, end, device=query.device)
        hidden = (seen > at) | (at - seen >= spec.window)
        scores = [(own @ keys.T).masked_fill(hidden[:, None], float("-inf"))]
        values = [keys]
        if self.compressed is not None and end >= spec.rate:
            assert compressed_plan is not None
            piece = None
            if selecting is not None:
                piece = (selecting[0][some.start : some.end], selecting[1][some.start : some.end])
            far, unseen = self.compressed.visible(
                some.sequence, at[:, 0], end // spec.rate, piece, compressed_plan
            )
            found = own @ far.transpose(-1, -2)
            scores.append(found.masked_fill(unseen[:, None], float("-inf")))
            values.append(far)
        sinks = self.sinks[None, :, None].expand(len(own), -1, 1)
        weights = torch.cat([*scores, sinks], dim=-1).softmax(-1)
        parts = torch.split(weights, [*(part.shape[-1] for part in scores), 1], dim=-1)
        out = parts[0] @ values[0]
        return out if len(values) == 1 else out + parts[1] @ values[1]


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
        dtype = str(context.dtype).removeprefix("torch.")
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
        sequence: int,
        positions: torch.Tensor,
        count: int,
        selecting: tuple[torch.Tensor, torch.Tensor] | None,
        plan: RowsPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first `count` keys, and which of them queries at `positions` [n] do not see.

        The keys are [count, head_size] or, where they are selected, [n, top_k, head_size], in
        float32; the mask is [n, count] or [n, top_k].
        """
        assert self.cache is not None
        spec = self.spec
        complete = (positions + 1) // spec.rate
        if spec.selector is None or selecting is None or count <= spec.selector.top_k:
            rows = plan.read(self.cache, sequence, 0, count)
            unseen = torch.arange(count, device=rows.device) >= complete[:, None]
            return rows[:, : spec.head_size].float(), unseen
        table = plan.table(sequence, count)
        index_keys = self.cache[..., spec.head_size :]
        chosen = self._select_tokens(
            *selecting, index_keys, table, complete, spec.selector.top_k
        ).long()
        owners = torch.full_like(positions, sequence)
        rows = plan.gather(self.cache, owners, chosen)
        return rows[..., : spec.head_size].float(), chosen >= complete[:, None]


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
