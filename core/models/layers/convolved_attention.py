"""Attention with convolved queries and keys, and values of two tokens (ZAYA).

What the convolutions read is cached as plain rows of the last tokens, next to keys and values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, SlidingRows, SlidingWindow
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.per_head import PerHead
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import ConvolvedAttentionSpec
    from core.models.layers.positions import Rotary
    from core.models.layers.row_cache import RowsPlan


class ConvolvedAttention(nn.Module):
    """Every rank projects and convolves all heads, and attends with its own ones."""

    source = None
    """Keys and values are never shared between layers."""

    def __init__(
        self,
        spec: ConvolvedAttentionSpec,
        hidden: int,
        prefix: str,
        rotary: Rotary,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._rotary = rotary
        self._backend = context.attention
        group = context.group
        self.heads = group.share(spec.heads, "num_attention_heads")
        self._own = group.own(spec.heads)
        self._own_kv = group.own(spec.kv_heads, min(spec.kv_heads, group.size))
        kv_heads = self._own_kv.stop - self._own_kv.start
        size = spec.head_size
        within = f"{prefix}.qkv_proj"
        parts = _projections(spec, within)
        self.qkv = Linear(context, weights, parts[0].prefix, hidden, parts, bias=spec.bias)
        self._expect_convolutions(within, context, weights)
        self.key_factor = empty_parameter(spec.kv_heads, dtype=torch.float32)
        factor = self.key_factor.data
        weights.add(
            f"{prefix}.qk_norm.temp", factor.shape, lambda tensor: copy_weight(factor, tensor)
        )
        out = [Slice("o", hidden)]
        width = spec.heads * size
        self.out = Linear(
            context, weights, f"{prefix}.o_proj", width, out, split="columns", bias=spec.bias
        )
        dtype = dtype_name(context.dtype)
        facts = (kv_heads, size, dtype)
        self.kv_spec: FullAttention = FullAttention(*facts)
        if spec.window is not None:
            self.kv_spec = SlidingWindow(*facts, window=spec.window)
        self.params = AttentionParams(self.heads, kv_heads, size, size**-0.5, window=spec.window)
        self.cache: torch.Tensor | None = None
        rows = sum(part.size for part in parts[:3])
        self.recent = RecentRows(SlidingRows(1, rows, dtype, window=sum(spec.kernels) - 1))

    def _expect_convolutions(self, prefix: str, context: BuildContext, weights: WeightMap) -> None:
        """Expect both convolutions, with the newest token last."""
        spec = self.spec
        channels = (spec.heads + spec.kv_heads) * spec.head_size
        by_channel, by_head = spec.kernels
        shapes = {
            "conv_qk_depthwise.weight": (channels, 1, by_channel),
            "conv_qk_depthwise.bias": (channels,),
            "conv_qk_grouped.bias": (channels,),
        }
        for name, shape in shapes.items():
            parameter = empty_parameter(*shape, dtype=context.dtype)
            self.register_parameter(name.replace(".", "_"), parameter)
            weights.add(f"{prefix}.{name}", shape, partial(copy_weight, parameter.data))
        heads = channels // spec.head_size
        name = f"{prefix}.conv_qk_grouped"
        self.by_head = PerHead(heads, spec.head_size, by_head * spec.head_size, name, context)
        weights.add(f"{name}.weight", (channels, spec.head_size, by_head), self._load_by_head)

    def _load_by_head(self, tensor: torch.Tensor) -> None:
        heads = torch.unflatten(tensor, 0, (-1, self.spec.head_size))
        self.by_head.load(heads.transpose(2, 3).flatten(2))

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: Any, recent_plan: RowsPlan
    ) -> torch.Tensor:
        """Return the attention output [n, hidden]; keys, values and rows go to the caches."""
        spec = self.spec
        product = self.qkv(x)
        recent = self.recent.cache
        assert self.cache is not None, "bind_kv was not called"
        assert recent is not None, "bind_kv was not called"
        width = recent.shape[-1]
        recent_plan.write(recent, product[recent_plan.tokens, :width])
        query, key = self._convolved(product, positions, recent, recent_plan)
        query, key = self._rotary(query, key, positions)
        before = self._before(product, positions, recent, recent_plan)
        value = torch.cat([product[:, self.qkv.slices["current"]], before], dim=-1)
        value = value.view(len(x), spec.kv_heads, spec.head_size)
        out = self._backend.attend(
            self.params,
            query[:, self._own],
            key[:, self._own_kv].contiguous(),
            value[:, self._own_kv].contiguous(),
            self.cache,
            plan,
        )
        return self.out(out.reshape(len(x), -1))  # type: ignore[no-any-return]

    def _before(
        self,
        product: torch.Tensor,
        positions: torch.Tensor,
        recent: torch.Tensor,
        plan: RowsPlan,
    ) -> torch.Tensor:
        """Return the part of values that the token before gave; before the first, its bias."""
        rows = self.qkv.slices["delayed"]
        found = product[:, rows].clone()
        numbers = (plan.positions[:, None] - 1).clamp(min=0)
        found[plan.tokens] = plan.gather(recent, plan.owners, numbers)[:, 0, rows]
        bias = 0.0 if self.qkv.bias is None else self.qkv.bias[rows]
        return torch.where((positions > 0)[:, None], found, bias)

    def _convolved(
        self,
        product: torch.Tensor,
        positions: torch.Tensor,
        recent: torch.Tensor,
        plan: RowsPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys [n, heads, head_size], of the same length before the factor."""
        spec = self.spec
        size = spec.head_size
        heads = spec.heads + spec.kv_heads
        channels = heads * size
        by_channel, by_head = spec.kernels
        span = by_channel + by_head - 1
        numbers = plan.positions[:, None] + torch.arange(1 - span, 1, device=product.device)
        rows = plan.gather(recent, plan.owners, numbers.clamp(min=0))[..., :channels]
        rows = rows.masked_fill((numbers < 0)[..., None], 0.0)
        weight = self.get_parameter("conv_qk_depthwise_weight")[:, 0].T  # [kernel, channels]
        windows = rows.unfold(1, by_channel, 1)  # [n, by_head, channels, by_channel]
        found = (windows * weight.T).sum(-1) + self.get_parameter("conv_qk_depthwise_bias")
        found = self.by_head(torch.unflatten(found, 2, (heads, size)).transpose(1, 2).flatten(2))
        found = found + self.get_parameter("conv_qk_grouped_bias").view(heads, size)
        mixed = found.new_zeros(len(product), heads, size)
        mixed[plan.tokens] = found
        own = product[:, :channels].view(len(product), heads, size)
        query, key = torch.split(own, [spec.heads, spec.kv_heads], dim=1)
        each = spec.heads // spec.kv_heads
        query = (query + key.repeat_interleave(each, 1)) * 0.5
        key = torch.unflatten(query, 1, (spec.kv_heads, each)).mean(2)
        query = self._unit(mixed[:, : spec.heads] + query)
        key = self._unit(mixed[:, spec.heads :] + key)
        return query, (key * self.key_factor[:, None]).to(query.dtype)

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """Return vectors [n, heads, head_size] scaled to the root of their size."""
        least = torch.finfo(x.dtype).eps
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(least)
        factor: torch.Tensor = self.spec.head_size**0.5 / length
        return x * factor


def _projections(spec: ConvolvedAttentionSpec, prefix: str) -> list[Slice]:
    """Return queries and keys before the convolutions, and both halves of values."""
    size = spec.head_size
    half = spec.kv_heads * size // 2
    return [
        Slice("q", spec.heads * size, f"{prefix}.q_proj"),
        Slice("k", spec.kv_heads * size, f"{prefix}.k_proj"),
        Slice("delayed", half, f"{prefix}.v_proj_delayed"),
        Slice("current", half, f"{prefix}.v_proj_current"),
    ]


class RecentRows(nn.Module):
    """The cache of what the convolutions of a layer read."""

    def __init__(self, kv_spec: SlidingRows) -> None:
        super().__init__()
        self.kv_spec = kv_spec
        self.cache: torch.Tensor | None = None
