"""Normalisation layers, each with the fused form that adds to the residual stream first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import NormSpec


class RmsNorm(nn.Module):
    """x / rms(x) * (weight + offset)."""

    def __init__(self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__()
        self.weight = empty_parameter(width, dtype=context.dtype)
        self._eps, self._offset = spec.eps, spec.offset
        self._norm, self._add_norm = context.ops.rms_norm, context.ops.add_rms_norm
        weights.add(f"{prefix}.weight", (width,), lambda tensor: place(self.weight, tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        return self._norm(x, self.weight, self._eps, self._offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum; either input may be overwritten."""
        return self._add_norm(x, residual, self.weight, self._eps, self._offset)


class LayerNorm(nn.Module):
    """(x - mean) / std * weight + bias."""

    def __init__(self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__()
        self.weight = empty_parameter(width, dtype=context.dtype)
        self.bias: nn.Parameter | None
        bias = empty_parameter(width, dtype=context.dtype) if spec.bias else None
        self.register_parameter("bias", bias)
        self._eps, self._norm = spec.eps, context.ops.layer_norm
        weights.add(f"{prefix}.weight", (width,), lambda tensor: place(self.weight, tensor))
        if bias is not None:
            weights.add(f"{prefix}.bias", (width,), lambda tensor: place(bias, tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        return self._norm(x, self.weight, self.bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum."""
        total = x + residual
        return self.forward(total), total


Norm = RmsNorm | LayerNorm


def make_norm(spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str) -> Norm:
    """Return the layer a spec describes, reading its tensors from `prefix`."""
    kind = RmsNorm if spec.kind == "rms" else LayerNorm
    return kind(spec, width, context, weights, prefix)
