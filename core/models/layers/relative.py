"""Learned numbers by head and distance, added to attention's scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.attention import RelativeSpec
    from core.models.layers.weights import WeightMap


class RelativeBias(nn.Module):
    """The checkpoint's [numbers, heads], spread over distances as `AttentionParams.distance_bias`
    has them.
    """

    def __init__(
        self, spec: RelativeSpec, heads: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        own = context.group.share(heads, "num_attention_heads")
        self.by_distance: torch.Tensor
        self.register_buffer(
            "by_distance", torch.empty(own, 2 * spec.most + 1, dtype=torch.float32)
        )
        shares = share_of_distances(spec)

        def spread(tensor: torch.Tensor) -> None:
            mine = context.group.cut(tensor, 1).T.float()  # [own, numbers]
            self.by_distance.copy_(mine.index_select(1, shares.to(mine.device)))

        weights.add(f"{prefix}.weight", (spec.numbers, heads), spread)

    def around(self, length: int) -> torch.Tensor:
        """Return the numbers of sequences up to `length`, as the op `full_attention` takes them."""
        reach = self.by_distance.shape[1] // 2
        ahead = torch.arange(1 - length, length, device=self.by_distance.device)
        return self.by_distance[:, ahead.clamp(-reach, reach) + reach]


def share_of_distances(spec: RelativeSpec) -> torch.Tensor:
    """Return which number each distance gets, from keys `most` tokens behind to `most` ahead: int64
    [2 * most + 1].
    """
    with torch.device("cpu"):
        ahead = torch.arange(-spec.most, spec.most + 1)
        numbers = spec.numbers // 2 if spec.both_ways else spec.numbers
        distance = ahead.abs() if spec.both_ways else (-ahead).clamp(min=0)
        exact = numbers // 2
        ratio = torch.log(distance.float() / exact) / math.log(spec.most / exact)
        wider = exact + (ratio * (numbers - exact)).clamp(min=0).to(torch.int64)
        share = torch.where(distance < exact, distance, wider.clamp(max=numbers - 1))
        return share + numbers * (ahead > 0) if spec.both_ways else share
