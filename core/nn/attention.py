"""Attention of one layer: one fused product for query, key and value, norms, rotary positions, then the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contracts import AttentionParams
from core.errors import ModelError
from core.kv_spec import ChunkedLocal, FullAttention, KVSpec, SlidingWindow
from core.nn.linear import Linear, Slice
from core.nn.norm import make_norm

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import AttentionSpec, WeightNames
    from core.nn.rotary import Rotary
    from core.nn.weights import WeightMap


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
        self.heads, self.kv_heads = group.share(spec.heads, "num_attention_heads"), spec.kv_heads // kv_parts
        self.head_size = spec.head_size
        self.spec = spec
        self._group, self._rotary, self._backend = group, rotary, context.attention
        self.kv_spec = _kv_spec(spec, self.kv_heads, str(context.dtype).removeprefix("torch."))
        self.params = AttentionParams(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=spec.head_size,
            scale=spec.head_size**-0.5 if spec.scale is None else spec.scale,
            window=spec.window,
            chunk=spec.chunk,
            softcap=spec.softcap,
        )
        self.cache: torch.Tensor | None = None
        own = not names.qkv
        width, kv_width = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
        self.qkv = Linear(
            context,
            weights,
            f"{layer}.{names.qkv or names.q}",
            hidden,
            [
                Slice("q", width, f"{layer}.{names.q}" if own else ""),
                Slice("k", kv_width, f"{layer}.{names.k}" if own else "", kv_parts),
                Slice("v", kv_width, f"{layer}.{names.v}" if own else "", kv_parts),
            ],
            split="rows",
            bias=spec.qkv_bias,
            transposed=names.transposed,
            order=_ungrouped(spec) if names.qkv_grouped else None,
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
        self.q_norm = self.k_norm = None
        if spec.qk_norm is not None:
            q_width, k_width = (width, kv_width) if spec.qk_norm_full else (spec.head_size, spec.head_size)
            self.q_norm = make_norm(spec.qk_norm, q_width, context, weights, f"{layer}.{names.q_norm}")
            self.k_norm = make_norm(spec.qk_norm, k_width, context, weights, f"{layer}.{names.k_norm}")
            if spec.qk_norm_full and kv_parts < group.size:
                raise ModelError(
                    f"{spec.kv_heads} key-value heads cannot be normalised together over {group.size} ranks; "
                    f"use a --tensor-parallel-size of at most {spec.kv_heads}."
                )

    def forward(self, x: torch.Tensor, positions: torch.Tensor, plan: Any) -> torch.Tensor:
        """Return attention's output [n, hidden]; keys and values go to the cache."""
        rows = self.qkv.slices
        qkv = self.qkv(x)  # [n, (heads + 2 * kv_heads) * head_size]
        query, key, value = qkv[:, rows["q"]], qkv[:, rows["k"]], qkv[:, rows["v"]]
        if self.q_norm is not None and self.k_norm is not None and self.spec.qk_norm_full:
            group = self._group
            query = group.cut(self.q_norm(group.all_gather(query)), 1)
            key = group.cut(self.k_norm(group.all_gather(key)), 1)
        query = query.view(-1, self.heads, self.head_size)
        key = key.view(-1, self.kv_heads, self.head_size)
        value = value.view(-1, self.kv_heads, self.head_size)
        if self.q_norm is not None and self.k_norm is not None and not self.spec.qk_norm_full:
            query, key = self.q_norm(query), self.k_norm(key)
        if self._rotary is not None:
            query, key = self._rotary(query, key, positions)
        assert self.cache is not None, "bind_kv was not called"
        out = self._backend.attend(self.params, query, key, value, self.cache, plan)
        return self.out(out.reshape(-1, self.heads * self.head_size))  # type: ignore[no-any-return]


def _kv_parts(kv_heads: int, ranks: int) -> int:
    parts = min(kv_heads, ranks)
    if kv_heads % parts or ranks % parts:
        raise ModelError(
            f"num_key_value_heads {kv_heads} does not divide over {ranks} ranks; "
            "use a --tensor-parallel-size that divides it or is a multiple of it."
        )
    return parts


def _kv_spec(spec: AttentionSpec, kv_heads: int, dtype: str) -> KVSpec:
    if spec.window is not None:
        return SlidingWindow(kv_heads, spec.head_size, dtype, window=spec.window)
    if spec.chunk is not None:
        return ChunkedLocal(kv_heads, spec.head_size, dtype, chunk=spec.chunk)
    return FullAttention(kv_heads, spec.head_size, dtype)


def _ungrouped(spec: AttentionSpec) -> list[int]:
    """Return which heads of rows grouped by key-value head are the queries, then the keys, then the values."""
    per_group = spec.heads // spec.kv_heads + 2
    groups = [range(start, start + per_group) for start in range(0, spec.kv_heads * per_group, per_group)]
    queries = [head for group in groups for head in group[:-2]]
    return queries + [group[-2] for group in groups] + [group[-1] for group in groups]
