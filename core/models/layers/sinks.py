"""Attention sinks: one weight per head, next to the weights of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import AttentionSpec, LatentAttentionSpec


def expect_sinks(
    spec: AttentionSpec | LatentAttentionSpec, name: str, context: BuildContext, weights: WeightMap
) -> nn.Parameter | None:
    """Return the attention sinks of this rank's heads; None without sinks."""
    if not spec.sinks:
        return None
    group = context.group
    sinks = empty_parameter(group.share(spec.heads, "num_attention_heads"), dtype=context.dtype)
    target = sinks.data
    weights.add(name, (spec.heads,), lambda tensor: copy_weight(target, group.cut(tensor, 0)))
    return sinks
