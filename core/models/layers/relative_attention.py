"""Attention with biases by distance and short convolutions (Inkling).

Every rank caches all keys and values as plain rows, and what the convolutions read as rows of the
last tokens. Scores are computed here: no attention backend takes a bias that depends on the query.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.kv import IndexKeys, SlidingRows
from core.models.dtypes import dtype_name
from core.models.layers.convolved_attention import RecentRows
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.query_batches import SeenRows
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.parallel import ParallelGroup
    from core.model_spec.relative import RelativeAttentionSpec
    from core.models.layers.query_batches import QueryBatch
    from core.models.layers.row_cache import RowsPlan


class RowConvolution(nn.Module):
    """Causal convolution per channel plus its input, over rows of a layer's cache."""

    def __init__(
        self,
        spec: RelativeAttentionSpec,
        columns: slice,
        prefix: str,
        weights: WeightMap,
        *,
        heads: int = 0,
    ) -> None:
        """`columns`: of the cached rows. With `heads`, tokens add to the kernel of each."""
        super().__init__()
        self._columns = columns
        self._kernel = spec.kernel
        self._heads = heads
        self._scale = (2 * spec.kernel + 1) ** -0.5 if heads else spec.output_scale
        width = columns.stop - columns.start
        self.weight = empty_parameter(spec.kernel, width, dtype=torch.float32)
        target = self.weight.data
        if heads:  # the first one is the current token's
            weights.add(
                f"{prefix}.static_weight",
                target.shape,
                lambda tensor: copy_weight(target, tensor.flip(0)),
            )
        else:
            load = partial(copy_weight, target.T[:, None])
            weights.add(f"{prefix}.conv1d.weight", (width, 1, spec.kernel), load)

    def forward(
        self,
        x: torch.Tensor,
        recent: torch.Tensor | None,
        plan: RowsPlan,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [n, channels]; `added`: what tokens add to the kernels, [n, heads * kernel]."""
        assert recent is not None, "bind_kv was not called"
        cache = recent[..., self._columns]
        plan.write(cache, x[plan.tokens])
        numbers = plan.positions[:, None] + torch.arange(1 - self._kernel, 1, device=x.device)
        rows = plan.gather(cache, plan.owners, numbers.clamp(min=0)).float()
        rows = rows.masked_fill((numbers < 0)[..., None], 0.0)
        found = (rows * self.weight).sum(1)
        if added is not None:
            own = added[plan.tokens].float().view(-1, self._heads, 1, self._kernel).flip(-1)
            split = rows.view(len(rows), self._kernel, self._heads, -1).permute(0, 2, 3, 1)
            found = found + (split * own).sum(-1).flatten(1)
        out = x.float()
        out = out.index_add(0, plan.tokens, found) * self._scale
        return out.to(x.dtype)


class RelativeAttention(nn.Module):
    """Each rank attends with its own heads, over the keys and values of all."""

    source = None
    """Keys and values are never shared between layers."""

    def __init__(
        self,
        spec: RelativeAttentionSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`prefix`: of the layer."""
        super().__init__()
        self.spec = spec
        group = context.group
        self.heads = group.share(spec.heads, "num_attention_heads")
        own = group.own(spec.heads)
        each = spec.heads // spec.kv_heads
        within = f"{prefix}.self_attn"
        width = spec.kv_heads * spec.head_size
        self._kv_of = torch.arange(own.start, own.stop) // each
        self._expect_projections(hidden, within, context, weights)
        starts = (0, width, 2 * width, 2 * width + hidden, 2 * (width + hidden))
        columns = [slice(a, b) for a, b in pairwise(starts)]
        convolve = partial(RowConvolution, spec, weights=weights)
        heads = spec.kv_heads if spec.own_kernels else 0
        self.key_conv = convolve(columns[0], f"{within}.k_sconv", heads=heads)
        self.value_conv = convolve(columns[1], f"{within}.v_sconv", heads=heads)
        self.out_conv = convolve(columns[2], f"{prefix}.attn_sconv")
        self.mlp_conv = convolve(columns[3], f"{prefix}.mlp_sconv")
        self._expect_norms(within, context, weights)
        self.profiles = empty_parameter(spec.bias_rank, spec.extent, dtype=context.dtype)
        load = partial(copy_weight, self.profiles.data)
        weights.add(f"{within}.rel_logits_proj.proj", self.profiles.shape, load)
        dtype = dtype_name(context.dtype)
        self.kv_spec: IndexKeys | SlidingRows = IndexKeys(1, 2 * width, dtype, top_k=0)
        if spec.window is not None:
            self.kv_spec = SlidingRows(1, 2 * width, dtype, window=spec.window)
        self.cache: torch.Tensor | None = None
        self.recent = RecentRows(SlidingRows(1, starts[-1], dtype, window=spec.kernel))

    def _expect_projections(
        self, hidden: int, within: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Expect the projections of queries, of keys and of values, each of one input."""
        spec = self.spec
        wide = spec.heads * spec.head_size
        width = spec.kv_heads * spec.head_size
        rows = [
            Slice("q", wide, f"{within}.q_proj"),
            Slice("r", spec.heads * spec.bias_rank, f"{within}.r_proj"),
        ]
        if spec.clips is not None:
            rows.append(Slice("gate", wide, f"{within}.gate_proj"))
            rows.append(Slice("sinks", spec.heads, f"{within}.sink_proj"))
        self.query = Linear(context, weights, rows[0].prefix, hidden, rows, split="rows")
        both = []
        for name in ("k", "v"):
            rows = [Slice("out", width, f"{within}.{name}_proj")]
            if spec.own_kernels:
                kernels = spec.kv_heads * spec.kernel
                rows.append(Slice("kernel", kernels, f"{within}.{name}_sconv.weight_proj"))
            both.append(Linear(context, weights, rows[0].prefix, hidden, rows))
        self.key, self.value = both
        out = [Slice("o", hidden)]
        self.out = Linear(context, weights, f"{within}.o_proj", wide, out, split="columns")

    def _expect_norms(self, within: str, context: BuildContext, weights: WeightMap) -> None:
        """Expect norms of queries and keys, or factors before they are clipped."""
        spec = self.spec
        size = spec.head_size
        if spec.clips is None:
            norm = partial(make_norm, spec.norm, size, context, weights)
            self.query_norm = norm(f"{within}.q_norm")
            self.key_norm = norm(f"{within}.k_norm")
            return
        group = context.group
        for name, width in (("q", size), ("rel", spec.bias_rank)):
            factor = empty_parameter(self.heads, width, dtype=torch.float32)
            self.register_parameter(f"{name}_factor", factor)
            load = partial(_load_own, factor.data, group)
            weights.add(f"{within}.{name}_l2_clip.scale", (spec.heads, width), load)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: RowsPlan, recent_plan: RowsPlan
    ) -> torch.Tensor:
        """Return the attention output [n, hidden]; keys, values and rows go to the caches."""
        del positions
        spec = self.spec
        assert self.cache is not None, "bind_kv was not called"
        recent = self.recent.cache
        inputs = x.chunk(3, -1) if spec.own_kernels else (x, x, x)
        product = self.query(inputs[0])
        parts = {name: product[:, rows] for name, rows in self.query.slices.items()}
        key = self._convolved(self.key, self.key_conv, inputs[1], recent, recent_plan)
        value = self._convolved(self.value, self.value_conv, inputs[2], recent, recent_plan)
        heads = parts["q"].reshape(len(x), self.heads, spec.head_size)
        bias = parts["r"].reshape(len(x), self.heads, spec.bias_rank)
        key = key.view(len(x), spec.kv_heads, spec.head_size)
        if spec.clips is None:
            heads = self.query_norm(heads)
            key = self.key_norm(key.contiguous())
        else:
            longest, longest_bias = spec.clips
            heads = clipped(heads.float() * self.get_parameter("q_factor"), longest)
            bias = clipped(bias.float() * self.get_parameter("rel_factor"), longest_bias)
            key = clipped(key, longest)
            value = value.view(len(x), spec.kv_heads, -1).float()
            square = value.square().mean(-1, keepdim=True)
            value = (value * torch.rsqrt(square + spec.norm.eps)).to(x.dtype).flatten(1)
        plan.write(self.cache, torch.cat([key.flatten(1).to(x.dtype), value], -1)[plan.tokens])
        out = self._attend(heads, bias, parts.get("sinks"), plan).to(x.dtype)
        if "gate" in parts:
            out = (out.float() * parts["gate"].float().sigmoid()).to(x.dtype)
        return self.out_conv(self.out(out), recent, recent_plan)  # type: ignore[no-any-return]

    def _convolved(
        self,
        linear: Linear,
        conv: RowConvolution,
        x: torch.Tensor,
        recent: torch.Tensor | None,
        plan: RowsPlan,
    ) -> torch.Tensor:
        product = linear(x)
        rows = linear.slices.get("kernel")
        added = None if rows is None else product[:, rows]
        found: torch.Tensor = conv(product[:, linear.slices["out"]], recent, plan, added)
        return found

    def _attend(
        self, query: torch.Tensor, bias: torch.Tensor, sinks: torch.Tensor | None, plan: RowsPlan
    ) -> torch.Tensor:
        """Return the output [n, heads * head_size]; queries of all sequences are taken in batches,
        computed in float32.
        """
        spec = self.spec
        width = 2 * self.heads * spec.head_size
        seen = SeenRows(spec.window, self.heads, width, min_width=spec.extent)
        out = query.new_zeros(query.shape[0], self.heads * spec.head_size, dtype=torch.float32)
        for batch in plan.batches(seen):
            shares, values = self._shares(batch, query, bias, sinks)
            found = torch.einsum("snhm,smhd->snhd", shares, values)
            out[batch.tokens] = found.flatten(2)
        return out

    def _shares(
        self,
        batch: QueryBatch,
        query: torch.Tensor,
        bias: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights [s, n, heads, m] and values [s, m, heads, head_size] of a batch."""
        spec = self.spec
        assert self.cache is not None
        rows = self.cache.flatten(0, 1)[batch.slots].float()
        split = torch.unflatten(rows, 2, (2, spec.kv_heads, -1))
        keys, values = split[:, :, :, self._kv_of].unbind(2)
        own = query[batch.tokens].float() * spec.scale
        scores = torch.einsum("snhd,smhd->snhm", own, keys)
        distance = batch.distance
        biases = bias[batch.tokens].float() @ self.profiles.float()
        index = distance.clamp(0, spec.extent - 1)[:, :, None].expand_as(scores)
        is_far = (distance < 0) | (distance >= spec.extent)
        scores = scores + biases.gather(-1, index).masked_fill(is_far[:, :, None], 0.0)
        if spec.temperature is not None:
            scale, floor = spec.temperature
            at = (batch.positions + 1).float()
            factor = 1.0 + scale * (at / floor).clamp(min=1.0).log()
            scores = scores * factor[..., None, None]
        scores = scores.masked_fill(batch.is_hidden[:, :, None], float("-inf"))
        if sinks is None:
            return scores.softmax(-1), values
        scores = torch.cat([scores, sinks[batch.tokens].float()[..., None]], -1)
        return scores.softmax(-1)[..., :-1], values


def clipped(x: torch.Tensor, longest: float) -> torch.Tensor:
    """Return vectors scaled down to a length, in float32."""
    x = x.float()
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    factor: torch.Tensor = (longest / (length + 1e-6)).clamp(max=1.0)
    return x * factor


def _load_own(target: torch.Tensor, group: ParallelGroup, tensor: torch.Tensor) -> None:
    """Load the rows of this rank's heads."""
    copy_weight(target, group.cut(tensor, 0))
