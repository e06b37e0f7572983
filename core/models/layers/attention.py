"""Multi-head attention of one layer, over the attention backend."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.attention import PooledIndexerSpec
from core.model_spec.attention_params import AttentionParams, QkNormRope
from core.model_spec.kv import ChunkedLocal, FullAttention, KVSpec, SlidingWindow
from core.models.layers.block_sparse_attention import BlockIndexer, PooledIndexer
from core.models.layers.kv_cache import KVCacheDtype
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import HeadsNorm, RmsNorm, make_norm, optional_norm
from core.models.layers.positions import RelativeBias
from core.models.layers.sinks import expect_sinks

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import AttentionSpec, Temperature
    from core.model_spec.names import WeightNames
    from core.models.layers.positions import Rotary
    from core.models.layers.weights import WeightMap


class Attention(nn.Module):
    """Attention with a fused QKV projection.

    Heads are split over ranks. With fewer KV heads than ranks, ranks hold copies of KV heads.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        rotary: Rotary | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._group = group = context.group
        self.kv_heads = spec.kv_heads // _kv_parts(spec.kv_heads, group.size)
        self.heads = group.share(spec.heads, "num_attention_heads")
        self.head_size = spec.head_size
        self.spec = spec
        self._rotary = rotary
        self._backend = context.attention
        self._gate_in_query = spec.gate and not names.attention_gate
        stored = {"k": f"{layer}.{names.qkv or names.k}", "v": f"{layer}.{names.qkv or names.v}"}
        cache_dtype = KVCacheDtype(spec.kv_dtype, stored, spec.kv_heads, context, weights)
        self.kv_spec = _kv_spec(spec, self.kv_heads, cache_dtype) if spec.causal else None
        """KV cache spec; None: nothing is cached."""
        self._full_attention = context.ops.full_attention
        self._sigmoid = context.ops.sigmoid
        self.relative = _relative_bias(spec, names, layer, context, weights)
        sinks = expect_sinks(spec, f"{layer}.{names.sinks}", context, weights)
        self.register_parameter("sinks", sinks)
        self.params = AttentionParams(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=spec.head_size,
            scale=spec.head_size**-0.5 if spec.scale is None else spec.scale,
            window=spec.window,
            chunk=spec.chunk,
            softcap=spec.softcap,
            alibi=group.cut(torch.tensor(spec.alibi), 0) if spec.alibi else None,
            sinks=None if sinks is None else sinks.data,
            distance_bias=None if self.relative is None else self.relative.by_distance,
            kv_dtype=cache_dtype.other_dtype,
            key_scale=cache_dtype.scales.get("k"),
            value_scale=cache_dtype.scales.get("v"),
        )
        self.cache: torch.Tensor | None = None
        self.source: Attention | None = None
        """Layer that owns the keys and values read here; None: this layer."""
        self.last: tuple[torch.Tensor, torch.Tensor] | None = None
        """Keys and values of the current step, for the layers that share them."""
        self.is_source = False
        self._build_projections(hidden, names, layer, context, weights)
        self._build_norms(names, layer, context, weights)
        self.indexer: BlockIndexer | PooledIndexer | None = None
        if isinstance(spec.indexer, PooledIndexerSpec):
            assert rotary is not None, "`PooledIndexerSpec` has validated it"
            prefix = f"{layer}.{names.indexer}"
            own = (prefix, rotary, context, weights)
            self.indexer = PooledIndexer(spec, hidden, self.kv_heads, *own)
        elif spec.indexer is not None:
            assert rotary is not None, "`BlockIndexerSpec` has validated it"
            prefix = f"{layer}.{names.indexer}"
            parts = _kv_parts(spec.kv_heads, group.size)
            self.indexer = BlockIndexer(spec, hidden, parts, prefix, rotary, context, weights)

    def _build_projections(
        self,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        spec = self.spec
        width = spec.heads * spec.head_size
        self.qkv = _make_qkv(spec, hidden, names, layer, context, weights)
        self.query_up = _make_query_up(spec, names, layer, context, weights)
        self.out = Linear(
            context,
            weights,
            f"{layer}.{names.o}",
            width,
            [Slice("o", hidden)],
            split="columns",
            bias=spec.out_bias,
            transposed=names.transposed,
        )
        self.gate: Linear | None = None
        if spec.gate and not self._gate_in_query:
            prefix = f"{layer}.{names.attention_gate}"
            gate = [Slice("gate", spec.heads if spec.gate_per_head else width)]
            self.gate = Linear(context, weights, prefix, hidden, gate, split="rows")

    def _build_norms(
        self, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        spec = self.spec
        width = spec.heads * spec.head_size
        inner = f"{layer}.{names.attention_inner}"
        self.inner_norm = optional_norm(spec.inner_norm, width, context, weights, inner)
        query = f"{layer}.{names.q_norm}"
        self.q_norm = _heads_norm(spec, spec.heads, context.group.size, context, weights, query)
        self.k_norm: nn.Module | None = None
        self.v_norm: nn.Module | None = None
        if spec.kv_source_layer is None:
            kv_parts = _kv_parts(spec.kv_heads, context.group.size)
            key = f"{layer}.{names.k_norm}"
            self.k_norm = _heads_norm(spec, spec.kv_heads, kv_parts, context, weights, key)
            value = f"{layer}.v_norm"
            self.v_norm = optional_norm(spec.v_norm, spec.head_size, context, weights, value)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: Any, index_plan: Any = None
    ) -> torch.Tensor:
        """Return the attention output [n, hidden]; keys and values are written to the cache.

        `plan` is the backend's plan of the step or, without a cache, the tokens per sequence.
        `index_plan`: the plan of the indexer's keys, of a layer with an indexer.
        """
        if self.spec.in_scale != 1.0:
            x = x * self.spec.in_scale
        product = self.qkv(x)  # [n, (heads + 2 * kv_heads) * head_size]
        fused = self._qk_norm_rope is not None
        if fused and self._rotary.step_cos_sin is None:  # type: ignore[union-attr]
            parts = self._parts(product)
            attend = self._backend.attend_with_rope  # type: ignore[attr-defined]
            out = attend(self.params, self._qk_norm_rope, *parts, positions, self.cache, plan)
            return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))
        query, key, value = self._rotated_parts(product, positions)
        if self.spec.temperature is not None:
            query = query * temperature_scale(self.spec.temperature, positions)[:, None, None].to(
                query.dtype
            )
        if self.kv_spec is None:
            bias = None if self.relative is None else self.relative.for_length(max(plan))
            out = self._full_attention(
                query, key, value, plan, self.params.scale, self.params.window, bias
            )
            return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))
        assert self.cache is not None, "bind_kv was not called"
        own = (self.params, query, key, value, self.cache)
        if self.indexer is None:
            out = self._backend.attend(*own, plan)
        else:
            selected = self.indexer(x, positions, index_plan)
            out = plan.attend_blocks(*own, selected, self.indexer.spec.block_size)
        return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))

    @cached_property
    def _qk_norm_rope(self) -> QkNormRope | None:
        """Return the fused norm and RoPE for the backend; None: the layer computes them itself."""
        spec = self.spec
        rotary = self._rotary
        norms = (None, None) if spec.qk_norm_over == "all" else (self.q_norm, self.k_norm)
        weights = [norm.weight for norm in norms if isinstance(norm, RmsNorm)]
        is_supported = norms == (None, None) or (
            len(weights) == len(norms) and not spec.qk_norm_after_rope
        )
        owns_kv = (
            self.source is None
            and not self.is_source
            and self.kv_spec is not None
            and spec.temperature is None
            and spec.indexer is None
        )
        if rotary is None or not (
            is_supported and owns_kv and hasattr(self._backend, "attend_with_rope")
        ):
            return None
        query_norm, key_norm = weights or (None, None)
        eps, offset = (
            (0.0, 0.0) if spec.qk_norm is None else (spec.qk_norm.eps, spec.qk_norm.offset)
        )
        return QkNormRope(query_norm, key_norm, eps, offset, rotary.cos_sin, rotary.interleaved)

    def _rotated_parts(
        self, qkv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [n, heads, head_size], after norms and RoPE."""
        if self.source is not None:
            return self._query_with_shared_kv(qkv, positions)
        query, key, value = self._parts(qkv)
        after_rope = self.spec.qk_norm_after_rope
        if not after_rope:
            query, key = self._norm_heads(query, key)
        if self._rotary is not None:
            query, key = self._rotary(query, key, positions)
        if after_rope:
            query, key = self._norm_heads(query, key)
        if self.is_source:
            self.last = key, value
        return query, key, value

    def _parts(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [n, heads, head_size], before per-head norms and RoPE."""
        rows = self.qkv.slices
        spec = self.spec
        query = qkv[:, rows["q"]]
        if self.query_up is not None:
            query = self.query_up(query)
        key = qkv[:, rows["k"]]
        value = qkv[:, rows["k" if spec.key_is_value else "v"]]
        if spec.qk_norm_over == "all":
            query, key = self._norm_all_heads(query, key)
        if spec.clip_qkv is not None:
            query, key, value = (
                part.clamp(-spec.clip_qkv, spec.clip_qkv) for part in (query, key, value)
            )
        if self._gate_in_query:
            query = self._query_and_gate(qkv)[0]
        query = query.reshape(-1, self.heads, self.head_size)
        key = key.view(-1, self.kv_heads, self.head_size)
        value = value.view(-1, self.kv_heads, self.head_size)
        if self.v_norm is not None:
            value = self.v_norm(value)
        elif spec.key_is_value:
            value = value.clone()  # RoPE may modify the key in place
        return query, key, value

    def _query_with_shared_kv(
        self, product: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return this layer's query, and the key and value of the source layer."""
        assert self.source is not None
        assert self.source.last is not None
        query = product.view(-1, self.heads, self.head_size)
        if self.q_norm is not None:
            query = self.q_norm(query)
        if self._rotary is not None:  # takes a query and a key; there is no key here
            query, _ = self._rotary(query, query[:, :0], positions)
        return query, *self.source.last

    def _norm_heads(
        self, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise each head, unless `qk_norm` is over all heads."""
        if self.q_norm is None or self.k_norm is None or self.spec.qk_norm_over == "all":
            return query, key
        return self.q_norm(query), self.k_norm(key)

    def _norm_all_heads(
        self, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        group = self._group
        query = group.cut(self.q_norm(group.all_gather(query)), 1)
        return query, group.cut(self.k_norm(group.all_gather(key)), 1)

    def _query_and_gate(self, product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and gate [n, heads, head_size] from their fused projection."""
        both = product[:, self.qkv.slices["q"]].view(-1, self.heads, 2, self.head_size)
        return both[:, :, 0], both[:, :, 1]

    def _finish(self, x: torch.Tensor, product: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if self.inner_norm is not None:
            out = self._group.cut(self.inner_norm(self._group.all_gather(out)), 1)
        if self.gate is not None:
            gate = self._sigmoid(self.gate(x))
            if self.spec.gate_per_head:
                gate = gate.repeat_interleave(self.head_size, -1)
            out = out * gate
        elif self._gate_in_query:
            out = out * self._sigmoid(self._query_and_gate(product)[1].flatten(1))
        out = self.out(out)
        return out if self.spec.out_scale == 1.0 else out * self.spec.out_scale


def temperature_scale(temperature: Temperature, positions: torch.Tensor) -> torch.Tensor:
    """Return the query scale at each position."""
    steps = ((positions + temperature.shift) / temperature.length).floor()
    return 1 + temperature.scale * steps.log1p()


def _relative_bias(
    spec: AttentionSpec, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
) -> RelativeBias | None:
    """Return the relative position bias, which layers may share."""
    relative = spec.relative
    if relative is None:
        return None
    prefix = names.relative.format(layer)
    return weights.shared(
        prefix, lambda: RelativeBias(relative, spec.heads, context, weights, prefix)
    )


def _make_qkv(
    spec: AttentionSpec,
    hidden: int,
    names: WeightNames,
    layer: str,
    context: BuildContext,
    weights: WeightMap,
) -> Linear:
    """Return the fused QKV projection.

    A layer that reads the keys and values of another one projects only queries.
    """
    own = not names.qkv
    kv_parts = _kv_parts(spec.kv_heads, context.group.size)
    width = spec.heads * spec.head_size
    if spec.gate and not names.attention_gate:
        width *= 2  # the gate is in the query projection
    kv_width = spec.kv_heads * spec.head_size
    parts = [Slice("q", width, f"{layer}.{names.q}" if own else "")]
    if spec.query_rank:  # every rank has the whole latent
        parts = [Slice("q", spec.query_rank, f"{layer}.{names.query_latent}", 1)]
    key = f"{layer}.{names.k}" if own else ""
    if spec.kv_source_layer is None:
        parts.append(Slice("k", kv_width, key, kv_parts, spec.key_bias))
        if not spec.key_is_value:
            value = f"{layer}.{names.v}" if own else ""
            parts.append(Slice("v", kv_width, value, kv_parts))
    return Linear(
        context,
        weights,
        f"{layer}.{names.qkv or names.q}",
        spec.input_size or hidden,
        parts,
        split="rows",
        bias=spec.qkv_bias,
        transposed=names.transposed,
        order=_ungrouped_heads(spec) if names.qkv_grouped else list(names.qkv_heads) or None,
        orders={key: _pairs(spec.kv_heads)} if own and names.k == names.v else None,
    )


def _make_query_up(
    spec: AttentionSpec, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
) -> nn.Sequential | None:
    """Return the norm and the projection of the query latent; None without one."""
    if not spec.query_rank:
        return None
    assert spec.query_norm is not None, "a query latent is normalised"
    prefix = f"{layer}.{names.query_latent_norm}"
    rows = [Slice("q", spec.heads * spec.head_size)]
    up = f"{layer}.{names.query_up}"
    return nn.Sequential(
        make_norm(spec.query_norm, spec.query_rank, context, weights, prefix),
        Linear(context, weights, up, spec.query_rank, rows, split="rows"),
    )


def _pairs(heads: int) -> list[int]:
    """Return the order that moves pairs of a key and a value head to keys, then values."""
    return [*range(0, 2 * heads, 2), *range(1, 2 * heads, 2)]


def _heads_norm(
    spec: AttentionSpec,
    heads: int,
    parts: int,
    context: BuildContext,
    weights: WeightMap,
    prefix: str,
) -> nn.Module | None:
    """Return the norm of queries or keys, with heads split into `parts`."""
    norm = spec.qk_norm
    over = spec.qk_norm_over
    size = spec.head_size
    if norm is None:
        return None
    if over == "own":
        return HeadsNorm(norm, (heads, size), parts, context, weights, prefix)
    if over == "all" and parts < context.group.size:
        raise ModelError(
            f"--tensor-parallel-size: got {context.group.size}; expected up to {heads}, the "
            "KV heads, which are normalised together."
        )
    return make_norm(norm, heads * size if over == "all" else size, context, weights, prefix)


def _kv_parts(kv_heads: int, ranks: int) -> int:
    parts = min(kv_heads, ranks)
    if kv_heads % parts or ranks % parts:
        raise ModelError(
            f"--tensor-parallel-size: got {ranks}; expected a divisor or a multiple of "
            f"num_key_value_heads {kv_heads}."
        )
    return parts


def _kv_spec(spec: AttentionSpec, kv_heads: int, cache_dtype: KVCacheDtype) -> KVSpec:
    facts = (kv_heads, spec.head_size, cache_dtype.dtype)
    scaled = cache_dtype.scaled
    if spec.window is not None:
        return SlidingWindow(*facts, scaled=scaled, window=spec.window)
    if spec.chunk is not None:
        return ChunkedLocal(*facts, scaled=scaled, chunk=spec.chunk)
    top_k = 0 if spec.indexer is None else spec.indexer.top_k
    return FullAttention(*facts, scaled=scaled, top_k=top_k)


def _ungrouped_heads(spec: AttentionSpec) -> list[int]:
    """Return the order that moves heads grouped by KV head to queries, keys, values."""
    per_group = spec.heads // spec.kv_heads + 2
    groups = [
        range(start, start + per_group) for start in range(0, spec.kv_heads * per_group, per_group)
    ]
    queries = [head for group in groups for head in group[:-2]]
    return queries + [group[-2] for group in groups] + [group[-1] for group in groups]
