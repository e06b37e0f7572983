"""Transformer block shared by several layers (Zamba).

Each use has its own cache and output projection, and in Zamba2 low-rank adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import make_activation
from core.models.layers.norm import make_norm

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import AttentionSpec, NormSpec
    from core.model_spec.layer import SharedBlockSpec
    from core.models.layers.positions import Rotary
    from core.models.layers.weights import WeightMap


class LowRank(nn.Module):
    """Low-rank adapters of one use: a down projection per prefix, then an up projection."""

    def __init__(
        self,
        parts: Sequence[tuple[str, Sequence[Slice]]],
        width: int,
        rank: int,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        down = [Slice(prefix, rank, f"{prefix}.0") for prefix, _ in parts]
        self.down = Linear(context, weights, "", width, down)
        self.ups = nn.ModuleList(
            Linear(context, weights, f"{prefix}.1", rank, slices, split="rows")
            for prefix, slices in parts
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width of all slices]."""
        narrow = self.down(x).chunk(len(self.ups), -1)
        return torch.cat([up(part) for up, part in zip(self.ups, narrow, strict=True)], -1)


@dataclass(frozen=True, slots=True)
class _StoredLayers:
    """The layers that all uses of the block share: built at the first use."""

    prefix: str
    context: BuildContext
    weights: WeightMap

    def linear(
        self, name: str, width: int, slices: Sequence[Slice], split: str, bias: bool = False
    ) -> Linear:
        """Return the linear layer of this name."""
        prefix = f"{self.prefix}.{name}"
        return self.weights.shared(
            prefix,
            lambda: Linear(
                self.context, self.weights, prefix, width, slices, split=split, bias=bias
            ),
        )

    def norm(self, name: str, spec: NormSpec, width: int) -> Any:
        """Return the norm of this name."""
        prefix = f"{self.prefix}.{name}"
        return self.weights.shared(
            prefix, lambda: make_norm(spec, width, self.context, self.weights, prefix)
        )


def _attention_adapters(
    spec: SharedBlockSpec,
    sizes: Mapping[str, int],
    width: int,
    context: BuildContext,
    weights: WeightMap,
) -> LowRank | None:
    """Return the adapters of queries, keys and values for this use; None without any."""
    if not spec.adapts_attention:
        return None
    lists = f"{spec.stored}.self_attn.linear_{{}}_adapter_list.{spec.use}"
    parts = [(lists.format(name), [Slice(name, size)]) for name, size in sizes.items()]
    return LowRank(parts, width, spec.rank, context, weights)


class SharedBlock(nn.Module):
    """One use of the shared block: norm, attention, norm, MLP, without residual connections."""

    source = None
    """Keys and values are never shared between layers."""

    def __init__(
        self,
        spec: SharedBlockSpec,
        attention: AttentionSpec,
        hidden: int,
        layer: str,
        rotary: Rotary | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        group = context.group
        stored = spec.stored
        mlp = spec.mlp
        read = 2 * hidden
        heads = group.share(attention.heads, "heads")
        kv_heads = group.share(attention.kv_heads, "key-value heads")
        size = attention.head_size
        self.kv_spec = FullAttention(kv_heads, size, dtype_name(context.dtype))
        self.params = AttentionParams(
            heads, kv_heads, size, size**-0.5 if attention.scale is None else attention.scale
        )
        self.cache: torch.Tensor | None = None
        self._backend = context.attention
        self._rotary = rotary
        layers = _StoredLayers(stored, context, weights)
        sizes = {
            "q": attention.heads * size,
            "k": attention.kv_heads * size,
            "v": attention.kv_heads * size,
        }
        heads_of = [
            Slice(name, width, f"{stored}.self_attn.{name}_proj") for name, width in sizes.items()
        ]
        self.norm_in = layers.norm("input_layernorm", spec.norm, read)
        self.norm_mlp = layers.norm("pre_ff_layernorm", spec.norm, hidden)
        self.qkv = layers.linear("self_attn.qkv", read, heads_of, "rows")
        self.out = layers.linear("self_attn.o_proj", sizes["q"], [Slice("o", hidden)], "columns")
        apart = "" if spec.gate_up else f"{stored}.feed_forward.{{}}_proj"
        both = [Slice(name, mlp.width, apart.format(name)) for name in ("gate", "up")]
        self.up = layers.linear("feed_forward.gate_up_proj", hidden, both, "rows", mlp.bias)
        self.down = layers.linear(
            "feed_forward.down_proj", mlp.width, [Slice("down", hidden)], "columns", mlp.bias
        )
        self.activate = make_activation(
            mlp.activation, gated=True, prefix="", context=context, weights=weights
        )
        self.adapt_qkv = _attention_adapters(spec, sizes, read, context, weights)
        self.adapt_up: LowRank | None = None
        if spec.rank:
            prefix = f"{stored}.feed_forward.gate_up_proj_adapter_list.{spec.use}"
            self.adapt_up = LowRank([(prefix, both)], hidden, spec.rank, context, weights)
        self.last = Linear(context, weights, f"{layer}.linear", hidden, [Slice("out", hidden)])

    def forward(
        self, x: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        """Return [n, hidden] for the residual stream and the token embedding."""
        x = self.norm_in(torch.cat([x, embedded], -1))
        product = self.qkv(x)
        if self.adapt_qkv is not None:
            product = product + self.adapt_qkv(x)
        query, key, value = (
            product[:, self.qkv.slices[name]].reshape(len(x), -1, self.params.head_size)
            for name in ("q", "k", "v")
        )
        if self._rotary is not None:
            query, key = self._rotary(query, key, positions)
        assert self.cache is not None, "bind_kv was not called"
        out = self._backend.attend(self.params, query, key, value, self.cache, plan)
        x = self.norm_mlp(self.out(out.reshape(len(x), -1)))
        product = self.up(x) if self.adapt_up is None else self.up(x) + self.adapt_up(x)
        result: torch.Tensor = self.last(self.down(self.activate(product)))
        return result
