"""Attention of one layer: one fused product for query, key and value, norms, rotary positions, then
the backend.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contracts import AttentionParams
from core.contracts.attention import Turning
from core.errors import ModelError
from core.model_spec.kv import ChunkedLocal, FullAttention, KVSpec, SlidingWindow
from core.models.layers.cached_as import CachedAs
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import HeadsNorm, RmsNorm, make_norm, optional_norm
from core.models.layers.relative import RelativeBias
from core.models.layers.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.attention import AttentionSpec
    from core.model_spec.names import WeightNames
    from core.model_spec.parts import Temperature
    from core.models.layers.rotary import Rotary
    from core.models.layers.weights import WeightMap


class Attention(nn.Module):
    """Heads are split over ranks; with fewer key-value heads than ranks, ranks hold copies of them."""

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
        group = context.group
        kv_parts = _kv_parts(spec.kv_heads, group.size)
        self.heads = group.share(spec.heads, "num_attention_heads")
        self.kv_heads = spec.kv_heads // kv_parts
        self.head_size = spec.head_size
        self.spec = spec
        self._group = group
        self._rotary = rotary
        self._backend = context.attention
        stored = {"k": f"{layer}.{names.qkv or names.k}", "v": f"{layer}.{names.qkv or names.v}"}
        kept = CachedAs(spec.kv_dtype, stored, spec.kv_heads, context, weights)
        self.kv_spec = _kv_spec(spec, self.kv_heads, kept) if spec.causal else None
        """What it caches; None: nothing."""
        self._full_attention = context.ops.full_attention
        self.relative: RelativeBias | None = None
        if spec.relative is not None:
            relative = spec.relative
            prefix = names.relative.format(layer)
            self.relative = weights.once(
                prefix, lambda: RelativeBias(relative, spec.heads, context, weights, prefix)
            )
        self.params = AttentionParams(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=spec.head_size,
            scale=spec.head_size**-0.5 if spec.scale is None else spec.scale,
            window=spec.window,
            chunk=spec.chunk,
            softcap=spec.softcap,
            alibi=group.cut(torch.tensor(spec.alibi), 0) if spec.alibi else None,
            sinks=self._expect_sinks(weights, context, f"{layer}.{names.sinks}")
            if spec.sinks
            else None,
            distance_bias=None if self.relative is None else self.relative.by_distance,
            kv_dtype=kept.other_dtype,
            key_scale=kept.scales.get("k"),
            value_scale=kept.scales.get("v"),
        )
        self.cache: torch.Tensor | None = None
        own = not names.qkv
        width = spec.heads * spec.head_size
        kv_width = spec.kv_heads * spec.head_size
        self._gate_in_query = spec.gate and not names.attention_gate
        parts = [
            Slice(
                "q",
                2 * width if self._gate_in_query else width,
                f"{layer}.{names.q}" if own else "",
            ),
            Slice("k", kv_width, f"{layer}.{names.k}" if own else "", kv_parts, spec.key_bias),
            Slice("v", kv_width, f"{layer}.{names.v}" if own else "", kv_parts),
        ]
        self.qkv = Linear(
            context,
            weights,
            f"{layer}.{names.qkv or names.q}",
            spec.reads or hidden,
            parts[:1] if spec.shares is not None else parts[:2] if spec.key_is_value else parts,
            split="rows",
            bias=spec.qkv_bias,
            transposed=names.transposed,
            order=_ungrouped(spec) if names.qkv_grouped else list(names.qkv_heads) or None,
        )
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
            self.gate = Linear(
                context, weights, prefix, hidden, [Slice("gate", width)], split="rows"
            )
        inner = f"{layer}.{names.attention_inner}"
        self.inner_norm = optional_norm(spec.inner_norm, width, context, weights, inner)
        self.q_norm = self._norm(
            spec.heads, group.size, f"{layer}.{names.q_norm}", context, weights
        )
        self.k_norm = self.v_norm = None
        self.source: Attention | None = None
        """The layer whose keys and values are attended to instead of own ones."""
        self.last: tuple[torch.Tensor, torch.Tensor] | None = None
        """What a step computed, kept where other layers attend to it."""
        self.is_source = False
        if spec.shares is None:
            self.k_norm = self._norm(
                spec.kv_heads, kv_parts, f"{layer}.{names.k_norm}", context, weights
            )
            self.v_norm = optional_norm(
                spec.v_norm, spec.head_size, context, weights, f"{layer}.v_norm"
            )

    def _norm(
        self, heads: int, parts: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> nn.Module | None:
        """Make the norm of queries or of keys, whose heads are split into so many parts."""
        norm = self.spec.qk_norm
        over = self.spec.qk_norm_over
        size = self.head_size
        if norm is None:
            return None
        if over == "own":
            return HeadsNorm(norm, (heads, size), parts, context, weights, prefix)
        if over == "all" and parts < context.group.size:
            raise ModelError(
                f"{heads} key-value heads cannot be normalised together over {context.group.size} "
                "ranks; "
                f"use a --tensor-parallel-size of at most {heads}."
            )
        return make_norm(norm, heads * size if over == "all" else size, context, weights, prefix)

    def _expect_sinks(self, weights: WeightMap, context: BuildContext, name: str) -> torch.Tensor:
        self.sinks = empty_parameter(self.heads, dtype=context.dtype)
        group = self._group
        target = self.sinks.data
        weights.add(name, (self.spec.heads,), lambda tensor: fill(target, group.cut(tensor, 0)))
        return target

    def forward(self, x: torch.Tensor, positions: torch.Tensor, plan: Any) -> torch.Tensor:
        """Return attention's output [n, hidden]; keys and values go to the cache.

        `plan` is what the backend prepared or, where nothing is cached, the number of tokens of
        each sequence.
        """
        if self.spec.in_scale != 1.0:
            x = x * self.spec.in_scale
        product = self.qkv(x)  # [n, (heads + 2 * kv_heads) * head_size]
        if self._turning is not None:
            parts = self._parts(product)
            out = self._backend.attend_turning(
                self.params, self._turning, *parts, positions, self.cache, plan
            )  # type: ignore[attr-defined]
            return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))
        query, key, value = self._turned_parts(product, positions)
        if self.spec.temperature is not None:
            query = query * growth(self.spec.temperature, positions)[:, None, None].to(query.dtype)
        if self.kv_spec is None:
            bias = None if self.relative is None else self.relative.around(max(plan))
            out = self._full_attention(
                query, key, value, plan, self.params.scale, self.params.window, bias
            )
            return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))
        assert self.cache is not None, "bind_kv was not called"
        out = self._backend.attend(self.params, query, key, value, self.cache, plan)
        return self._finish(x, product, out.reshape(-1, self.heads * self.head_size))

    @cached_property
    def _turning(self) -> Turning | None:
        """Return what the backend does to queries and keys; None: not all that is to be done, so it
        does nothing of it.
        """
        spec = self.spec
        rotary = self._rotary
        norms = (None, None) if spec.qk_norm_over == "all" else (self.q_norm, self.k_norm)
        weights = [norm.weight for norm in norms if isinstance(norm, RmsNorm)]
        known = norms == (None, None) or (len(weights) == len(norms) and not spec.qk_norm_turned)
        own = (
            self.source is None
            and not self.is_source
            and self.kv_spec is not None
            and spec.temperature is None
        )
        if rotary is None or not (known and own and hasattr(self._backend, "attend_turning")):
            return None
        query_norm, key_norm = weights or (None, None)
        eps, offset = (
            (0.0, 0.0) if spec.qk_norm is None else (spec.qk_norm.eps, spec.qk_norm.offset)
        )
        return Turning(query_norm, key_norm, eps, offset, rotary.cos_sin, rotary.interleaved)

    def _turned_parts(
        self, qkv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [n, heads, head_size], normalised and turned."""
        if self.source is not None:
            return self._query_of_another(qkv, positions)
        query, key, value = self._parts(qkv)
        each = self.q_norm is not None and self.spec.qk_norm_over != "all"
        if each and not self.spec.qk_norm_turned:
            # type: ignore[misc]
            query = self.q_norm(query)
            key = self.k_norm(key)
        if self._rotary is not None:
            query, key = self._rotary(query, key, positions)
        if each and self.spec.qk_norm_turned:
            # type: ignore[misc]
            query = self.q_norm(query)
            key = self.k_norm(key)
        if self.is_source:
            self.last = key, value
        return query, key, value

    def _parts(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [n, heads, head_size], whose heads are neither normalised nor
        turned.
        """
        rows = self.qkv.slices
        spec = self.spec
        query = qkv[:, rows["q"]]
        key = qkv[:, rows["k"]]
        value = qkv[:, rows["k" if spec.key_is_value else "v"]]
        if spec.qk_norm_over == "all":
            query, key = self._normed_together(query, key)
        if spec.qkv_clip is not None:
            query, key, value = (
                part.clamp(-spec.qkv_clip, spec.qkv_clip) for part in (query, key, value)
            )
        if self._gate_in_query:
            query = self._query_and_gate(qkv)[0]
        query = query.reshape(-1, self.heads, self.head_size)
        key = key.view(-1, self.kv_heads, self.head_size)
        value = value.view(-1, self.kv_heads, self.head_size)
        if self.v_norm is not None:
            value = self.v_norm(value)
        elif spec.key_is_value:
            value = value.clone()  # the key may turn in place
        return query, key, value

    def _query_of_another(
        self, product: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return an own query, and the source's key and value, which the backend writes where they
        already are.
        """
        assert self.source is not None
        assert self.source.last is not None
        query = product.view(-1, self.heads, self.head_size)
        if self.q_norm is not None:
            query = self.q_norm(query)
        if self._rotary is not None:  # it turns two; there is no key here
            query, _ = self._rotary(query, query[:, :0], positions)
        return query, *self.source.last

    def _normed_together(
        self, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        group = self._group
        query = group.cut(self.q_norm(group.all_gather(query)), 1)
        return query, group.cut(self.k_norm(group.all_gather(key)), 1)

    def _query_and_gate(self, product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the halves of each head's rows [n, heads, head_size], where a tensor holds both."""
        both = product[:, self.qkv.slices["q"]].view(-1, self.heads, 2, self.head_size)
        return both[:, :, 0], both[:, :, 1]

    def _finish(self, x: torch.Tensor, product: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if self.inner_norm is not None:
            out = self._group.cut(self.inner_norm(self._group.all_gather(out)), 1)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        elif self._gate_in_query:
            out = out * self._query_and_gate(product)[1].flatten(1).sigmoid()
        out = self.out(out)
        return out if self.spec.out_scale == 1.0 else out * self.spec.out_scale


def growth(temperature: Temperature, positions: torch.Tensor) -> torch.Tensor:
    """Return the factor on the queries at each position."""
    steps = ((positions + temperature.shift) / temperature.length).floor()
    return 1 + temperature.scale * steps.log1p()


def _kv_parts(kv_heads: int, ranks: int) -> int:
    parts = min(kv_heads, ranks)
    if kv_heads % parts or ranks % parts:
        raise ModelError(
            f"num_key_value_heads {kv_heads} does not divide over {ranks} ranks; "
            "use a --tensor-parallel-size that divides it or is a multiple of it."
        )
    return parts


def _kv_spec(spec: AttentionSpec, kv_heads: int, kept: CachedAs) -> KVSpec:
    facts = (kv_heads, spec.head_size, kept.dtype)
    scaled = kept.scaled
    if spec.window is not None:
        return SlidingWindow(*facts, scaled=scaled, window=spec.window)
    if spec.chunk is not None:
        return ChunkedLocal(*facts, scaled=scaled, chunk=spec.chunk)
    return FullAttention(*facts, scaled=scaled)


def _ungrouped(spec: AttentionSpec) -> list[int]:
    """Return which heads of rows grouped by key-value head are the queries, then the keys, then the
    values.
    """
    per_group = spec.heads // spec.kv_heads + 2
    groups = [
        range(start, start + per_group) for start in range(0, spec.kv_heads * per_group, per_group)
    ]
    queries = [head for group in groups for head in group[:-2]]
    return queries + [group[-2] for group in groups] + [group[-1] for group in groups]
