"""What layers that see both sides share in a step: how long its sequences are, and biases by distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import RelativeSpec


@dataclass(frozen=True, slots=True)
class Sequences:
    """The step's sequences, one after the other."""

    counts: list[int]
    bias: torch.Tensor | None = None
    """[heads, 2 * longest - 1] by distance, as `core.ops.reference.full_attention` reads it."""


class RelativeBias(nn.Module):
    """The table of biases: [buckets, heads]."""

    def __init__(self, spec: RelativeSpec, heads: int, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__()
        self._spec, self._group = spec, context.group
        self.table = empty_parameter(spec.buckets, heads, dtype=context.dtype)
        weights.add(f"{prefix}.weight", self.table.shape, lambda tensor: place(self.table, tensor))

    def forward(self, longest: int) -> torch.Tensor:
        """Return this rank's heads' biases for distances up to `longest` - 1 on both sides."""
        distances = torch.arange(1 - longest, longest, device=self.table.device)
        return self._group.cut(self.table[buckets(distances, self._spec)].T, 0)


def buckets(distances: torch.Tensor, spec: RelativeSpec) -> torch.Tensor:
    """Return the bucket of each distance of a key behind its query."""
    side = spec.buckets // 2
    exact = side // 2
    away = distances.abs()
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(spec.max_distance / exact)
    far = (exact + (growth * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(away < exact, away, far) + side * (distances > 0)
