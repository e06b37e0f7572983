"""Cross attention of one layer to encoder states, over the attention backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import CrossAttention as CrossKV
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.layer import CrossAttentionSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.weights import WeightMap


class CrossAttention(nn.Module):
    """Attention over the encoder output.

    Its keys and values are computed in the step that encodes the input, then read from the cache.
    """

    def __init__(
        self,
        spec: CrossAttentionSpec,
        hidden: int,
        limits: tuple[int, bool],
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`limits`: `max_len` and `input_in_keys` of its cache."""
        super().__init__()
        facts = spec.attention
        group = context.group
        heads = group.share(facts.heads, "heads")
        kv_heads = group.share(facts.kv_heads, "key-value heads")
        dtype = dtype_name(context.dtype)
        max_len, in_keys = limits
        sizes = (kv_heads, facts.head_size, dtype)
        self.kv_spec = CrossKV(*sizes, max_len=max_len, input_in_keys=in_keys)
        scale = facts.head_size**-0.5 if facts.scale is None else facts.scale
        self.params = AttentionParams(heads, kv_heads, facts.head_size, scale, causal=False)
        self.cache: torch.Tensor | None = None
        self._backend = context.attention
        width = facts.heads * facts.head_size
        kv_width = facts.kv_heads * facts.head_size

        query = [Slice("q", width)]
        keys_values = [
            Slice("k", kv_width, f"{layer}.{names.cross_k}", bias=facts.key_bias),
            Slice("v", kv_width, f"{layer}.{names.cross_v}"),
        ]
        out = [Slice("o", hidden)]
        linear = partial(Linear, context, weights, transposed=names.transposed)
        name = f"{layer}.{names.cross_q}"
        self.q = linear(name, hidden, query, split="rows", bias=facts.qkv_bias)
        name = f"{layer}.{names.cross_k}"
        self.kv = linear(name, hidden, keys_values, split="rows", bias=facts.qkv_bias)
        name = f"{layer}.{names.cross_o}"
        self.out = linear(name, width, out, split="columns", bias=facts.out_bias)
        self.norm_in = optional_norm(
            spec.norm_in, hidden, context, weights, f"{layer}.{names.cross_in}"
        )
        self.norm_out = optional_norm(
            spec.norm_out, hidden, context, weights, f"{layer}.{names.cross_out}"
        )
        norm = partial(optional_norm, facts.qk_norm, facts.head_size, context, weights)
        self.q_norm = norm(f"{layer}.{names.cross_q_norm}")
        self.k_norm = norm(f"{layer}.{names.cross_k_norm}")

    def forward(
        self, x: torch.Tensor, encoder_states: torch.Tensor | None, plan: Any
    ) -> torch.Tensor:
        """Return the attention output [n, hidden], before the output norm.

        `encoder_states` [positions, hidden] is the encoder output of this step; None: no input was
        encoded.
        """
        size = self.params.head_size
        kv_heads = self.params.kv_heads
        query = self.q(x).view(-1, self.params.heads, size)
        if self.q_norm is not None:
            query = self.q_norm(query)
        if encoder_states is None:
            key = value = query.new_empty(0, kv_heads, size)
        else:
            rows = self.kv.slices
            both = self.kv(encoder_states)
            key, value = (both[:, rows[part]].view(-1, kv_heads, size) for part in ("k", "v"))
            if self.k_norm is not None:
                key = self.k_norm(key)
        assert self.cache is not None, "bind_kv was not called"
        out = self._backend.attend(self.params, query, key, value, self.cache, plan)
        return self.out(out.reshape(len(x), -1))  # type: ignore[no-any-return]
