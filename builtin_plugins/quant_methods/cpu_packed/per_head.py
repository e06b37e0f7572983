"""A packed matrix per head; a token's product does not depend on the other tokens of a step."""

from __future__ import annotations

import torch
from core_kernels.packed import PackedOps
from torch import nn

from core.models.layers.weights import refuse_integers


class PackedPerHead:
    """Matrices [rows, width] of all heads."""

    def __init__(self, ops: PackedOps) -> None:
        self._ops = ops
        self._rows = 0

    def create(
        self, layer: nn.Module, heads: int, rows: int, width: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, packed."""
        self._rows = rows
        empty = self._ops.empty(rows, width, dtype, heads)
        layer.register_parameter("weight", nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, matrices: torch.Tensor) -> None:
        """Pack the matrices."""
        refuse_integers(matrices)
        weight = layer.get_parameter("weight").data
        for packed, matrix in zip(weight, matrices, strict=True):
            self._ops.pack(packed, self._rows, 0, matrix)

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, heads, width] times each head's matrix."""
        return self._ops.per_head(x, layer.get_parameter("weight"), self._rows)
