"""A product with a matrix per head, such as the absorbed projections of latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.quantization import plain_method
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.quant_method import PerHeadMethod


class PlainPerHead:
    """Matrices in the layout of a batched product."""

    def create(
        self, layer: nn.Module, heads: int, rows: int, width: int, dtype: torch.dtype
    ) -> None:
        """Register `weight` [heads, width, rows]."""
        layer.register_parameter("weight", empty_parameter(heads, width, rows, dtype=dtype))

    def load(self, layer: nn.Module, matrices: torch.Tensor) -> None:
        """Copy the matrices."""
        copy_weight(layer.get_parameter("weight").data, matrices.transpose(1, 2))

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return the batched product, contiguous."""
        weight = layer.get_parameter("weight")
        return self.write(layer, x, x.new_empty(*x.shape[:2], weight.shape[2]))

    def write(self, layer: nn.Module, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the batched product to `out` and return it."""
        weight = layer.get_parameter("weight")
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
        return out


class PerHead(nn.Module):
    """Multiplies each head by its own matrix [rows, width]."""

    def __init__(
        self, heads: int, rows: int, width: int, prefix: str, context: BuildContext
    ) -> None:
        super().__init__()
        self.method: PerHeadMethod = plain_method(context, "per_head", prefix) or PlainPerHead()
        self.method.create(self, heads, rows, width, context.dtype)

    def load(self, matrices: torch.Tensor) -> None:
        """Set the matrices [heads, rows, width]."""
        self.method.load(self, matrices)

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return [n, heads, rows] for x [n, heads, width], in `out` if it is given."""
        if out is None:
            return self.method.apply(self, x)
        if isinstance(self.method, PlainPerHead):
            return self.method.write(self, x, out)
        return out.copy_(self.method.apply(self, x))
