"""Query scaling by position with learned factors, a pair for each head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.parallel import ParallelGroup
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.models.layers.weights import WeightMap


class LogScaling(nn.Module):
    """Multiplies the queries of a head at position p by scale * log(p + 1) + bias."""

    def __init__(self, heads: int, prefix: str, group: ParallelGroup, weights: WeightMap) -> None:
        """`heads`: those of the model, which are split over the ranks of `group`."""
        super().__init__()
        own = group.share(heads, "heads")
        self.scale = empty_parameter(own, dtype=torch.float32)
        self.bias = empty_parameter(own, dtype=torch.float32)

        def copy(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
            copy_weight(parameter.data, group.cut(tensor, 0))

        for name, parameter in self.named_parameters():
            weights.add(f"{prefix}.{name}", (heads,), partial(copy, parameter))

    def forward(self, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the scaled queries [n, heads, size]."""
        logarithms = (positions + 1).float().log()[:, None]
        factors = logarithms * self.scale + self.bias
        return query * factors[..., None].to(query.dtype)
