"""Normalisation layers, each with the fused form that adds to the residual stream first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.parts import NormSpec


class RmsNorm(nn.Module):
    """x / rms(x) * (weight + offset)."""

    def __init__(
        self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        self._eps = spec.eps
        self._offset = spec.offset
        self._norm = context.ops.rms_norm
        self._add_norm = context.ops.add_rms_norm
        if spec.weight:
            self.weight = empty_parameter(width, dtype=context.dtype)
            weights.add(f"{prefix}.weight", (width,), lambda tensor: place(self.weight, tensor))
        else:
            self.weight = nn.Parameter(torch.ones(width, dtype=context.dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        return self._norm(x, self.weight, self._eps, self._offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum; either input may be overwritten."""
        return self._add_norm(x, residual, self.weight, self._eps, self._offset)


class LayerNorm(nn.Module):
    """(x - mean) / std * (weight + offset) + bias."""

    def __init__(
        self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        weight = empty_parameter(width, dtype=context.dtype) if spec.weight else None
        bias = empty_parameter(width, dtype=context.dtype) if spec.bias else None
        self.weight: nn.Parameter | None
        self.bias: nn.Parameter | None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        self._eps = spec.eps
        self._norm = context.ops.layer_norm
        if weight is not None:
            weights.add(
                f"{prefix}.weight",
                (width,),
                lambda tensor: _place_plus(weight, tensor, spec.offset),
            )
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


def make_norm(
    spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
) -> Norm:
    """Return the layer a spec describes, reading its tensors from `prefix`."""
    kind = RmsNorm if spec.kind == "rms" else LayerNorm
    return kind(spec, width, context, weights, prefix)


def optional_norm(
    spec: NormSpec | None, width: int, context: BuildContext, weights: WeightMap, prefix: str
) -> Norm | None:
    """Return the layer a spec describes, None for None."""
    return None if spec is None else make_norm(spec, width, context, weights, prefix)


class HeadsNorm(nn.Module):
    """A norm over each head, every head with its own weights.

    The checkpoint has them in one tensor [heads, head_size], or in one per head where `prefix` has
    a `{}`. A rank holds the heads of its part of `parts`; ranks with an equal part hold copies.
    """

    def __init__(
        self,
        spec: NormSpec,
        shape: tuple[int, int],
        parts: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
    ) -> None:
        super().__init__()
        heads, size = shape
        part = context.group.own(heads, parts)
        own = range(part.start, part.stop)
        self._plain = make_norm(_without_weight(spec), size, context, weights, prefix)
        self.weight = empty_parameter(len(own), size, dtype=context.dtype)
        if "{}" not in prefix:
            weights.add(
                f"{prefix}.weight", shape, lambda tensor: fill(self.weight.data, tensor[part])
            )
            return
        for head in range(heads):
            row = self.weight.data[head - own.start] if head in own else None
            weights.add(f"{prefix.format(head)}.weight", (size,), partial(_fill_own, row))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, heads, head_size] normalised."""
        return self._plain(x) * self.weight  # type: ignore[no-any-return]


def _without_weight(spec: NormSpec) -> NormSpec:
    return type(spec)(kind=spec.kind, eps=spec.eps, weight=False)


def _fill_own(row: torch.Tensor | None, tensor: torch.Tensor) -> None:
    if row is not None:
        fill(row, tensor)


def _place_plus(parameter: nn.Parameter, tensor: torch.Tensor, offset: float) -> None:
    if offset:  # the file's own memory must not change
        fill(parameter.data, tensor)
        parameter.data += offset
    else:
        place(parameter, tensor)
