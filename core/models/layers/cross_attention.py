"""Attention of a decoder's tokens to what an encoder made of the request's input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.contracts import AttentionParams
from core.model_spec.kv import CrossAttention as CrossKV
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import CrossSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.weights import WeightMap


class CrossAttention(nn.Module):
    """Keys and values of an input are computed in the step that encodes it, and read from the cache
    ever after.
    """

    def __init__(
        self,
        spec: CrossSpec,
        hidden: int,
        max_len: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        facts = spec.attention
        group = context.group
        heads, kv_heads = (
            group.share(facts.heads, "heads"),
            group.share(facts.kv_heads, "key-value heads"),
        )
        dtype = str(context.dtype).removeprefix("torch.")
        self.kv_spec = CrossKV(kv_heads, facts.head_size, dtype, max_len=max_len)
        scale = facts.head_size**-0.5 if facts.scale is None else facts.scale
        self.params = AttentionParams(heads, kv_heads, facts.head_size, scale, causal=False)
        self.cache: torch.Tensor | None = None
        self._backend = context.attention
        width = facts.heads * facts.head_size
        kv_width = facts.kv_heads * facts.head_size

        def product(name: str, inner: int, slices: list[Slice], split: str, bias: bool) -> Linear:
            prefix = f"{layer}.{name}"
            transposed = names.transposed
            return Linear(
                context,
                weights,
                prefix,
                inner,
                slices,
                split=split,
                bias=bias,
                transposed=transposed,
            )

        keys_values = [
            Slice("k", kv_width, f"{layer}.{names.cross_k}", bias=facts.key_bias),
            Slice("v", kv_width, f"{layer}.{names.cross_v}"),
        ]
        self.q = product(names.cross_q, hidden, [Slice("q", width)], "rows", facts.qkv_bias)
        self.kv = product(names.cross_k, hidden, keys_values, "rows", facts.qkv_bias)
        self.out = product(names.cross_o, width, [Slice("o", hidden)], "columns", facts.out_bias)
        self.norm_in = optional_norm(
            spec.norm_in, hidden, context, weights, f"{layer}.{names.cross_in}"
        )
        self.norm_out = optional_norm(
            spec.norm_out, hidden, context, weights, f"{layer}.{names.cross_out}"
        )

    def forward(self, x: torch.Tensor, made: torch.Tensor | None, plan: Any) -> torch.Tensor:
        """Return attention's output [n, hidden], not yet normalised.

        `made` [positions, hidden] is what the encoder made of the inputs of this step; None: there
        are none.
        """
        size = self.params.head_size
        kv_heads = self.params.kv_heads
        query = self.q(x).view(-1, self.params.heads, size)
        if made is None:
            key = value = query.new_empty(0, kv_heads, size)
        else:
            rows = self.kv.slices
            both = self.kv(made)
            key, value = (both[:, rows[part]].view(-1, kv_heads, size) for part in ("k", "v"))
        assert self.cache is not None, "bind_kv was not called"
        out = self._backend.attend(self.params, query, key, value, self.cache, plan)
        return self.out(out.reshape(len(x), -1))  # type: ignore[no-any-return]
