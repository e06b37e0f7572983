"""A transformer whose weights several layers share: each use has a cache, products of low rank and
a last product of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contracts import AttentionParams
from core.model_spec.kv import FullAttention
from core.models.layers.activation import make_activation
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.attention import AttentionSpec
    from core.model_spec.decoder import SharedSpec
    from core.models.layers.rotary import Rotary
    from core.models.layers.weights import WeightMap


class LowRank(nn.Module):
    """What one use adds to a shared product: for each prefix, a narrow product and one from there
    to its slices.
    """

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


class SharedBlock(nn.Module):
    """One use. Attention and MLP follow each other behind a norm each; nothing is added between."""

    source = None
    """No layer attends to another's keys."""

    def __init__(
        self,
        spec: SharedSpec,
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
        heads, kv_heads = (
            group.share(attention.heads, "heads"),
            group.share(attention.kv_heads, "key-value heads"),
        )
        size = attention.head_size
        self.kv_spec = FullAttention(kv_heads, size, str(context.dtype).removeprefix("torch."))
        self.params = AttentionParams(
            heads, kv_heads, size, size**-0.5 if attention.scale is None else attention.scale
        )
        self.cache: torch.Tensor | None = None
        self._backend = context.attention
        self._rotary = rotary

        def shared(
            name: str, width: int, slices: Sequence[Slice], split: str, bias: bool = False
        ) -> Linear:
            prefix = f"{stored}.{name}"
            return weights.once(
                prefix,
                lambda: Linear(context, weights, prefix, width, slices, split=split, bias=bias),
            )

        def norm(name: str, width: int) -> Any:
            prefix = f"{stored}.{name}"
            return weights.once(
                prefix, lambda: make_norm(spec.norm, width, context, weights, prefix)
            )

        sizes = {
            "q": attention.heads * size,
            "k": attention.kv_heads * size,
            "v": attention.kv_heads * size,
        }
        heads_of = [
            Slice(name, width, f"{stored}.self_attn.{name}_proj") for name, width in sizes.items()
        ]
        self.norm_in = norm("input_layernorm", read)
        self.norm_mlp = norm("pre_ff_layernorm", hidden)
        self.qkv = shared("self_attn.qkv", read, heads_of, "rows")
        self.out = shared("self_attn.o_proj", sizes["q"], [Slice("o", hidden)], "columns")
        both = [Slice("gate", mlp.width), Slice("up", mlp.width)]
        self.up = shared("feed_forward.gate_up_proj", hidden, both, "rows", mlp.bias)
        self.down = shared(
            "feed_forward.down_proj", mlp.width, [Slice("down", hidden)], "columns", mlp.bias
        )
        self.activate = make_activation(
            mlp.activation, gated=True, prefix="", context=context, weights=weights
        )
        self.adapt_qkv: LowRank | None = None
        if spec.adapts_attention:
            lists = f"{stored}.self_attn.linear_{{}}_adapter_list.{spec.use}"
            parts = [(lists.format(name), [Slice(name, width)]) for name, width in sizes.items()]
            self.adapt_qkv = LowRank(parts, read, spec.rank, context, weights)
        prefix = f"{stored}.feed_forward.gate_up_proj_adapter_list.{spec.use}"
        self.adapt_up = LowRank([(prefix, both)], hidden, spec.rank, context, weights)
        self.last = Linear(context, weights, f"{layer}.linear", hidden, [Slice("out", hidden)])

    def forward(
        self, x: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        """Return [n, hidden] for the stream and the tokens' embedding; keys and values go to the
        cache.
        """
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
        return self.last(self.down(self.activate(self.up(x) + self.adapt_up(x))))  # type: ignore[no-any-return]
