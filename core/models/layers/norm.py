"""Norm layers, each with a fused form that adds to the residual stream first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap, assign_weight, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import NormSpec


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
            weights.add(
                f"{prefix}.weight", (width,), lambda tensor: assign_weight(self.weight, tensor)
            )
        else:
            self.weight = nn.Parameter(torch.ones(width, dtype=context.dtype), requires_grad=False)
        self._reader: Linear | None = None

    def write_for(self, reader: Linear) -> None:
        """Return rows as `reader` multiplies them, quantized or not; nothing else may read them."""
        object.__setattr__(self, "_reader", reader)  # not a submodule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        norm = self._op("rms_norm", self._norm)
        out: torch.Tensor = norm(x, self.weight, self._eps, self._offset)
        return out

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum; may modify both inputs."""
        norm = self._op("add_rms_norm", self._add_norm)
        pair: tuple[torch.Tensor, torch.Tensor]
        pair = norm(x, residual, self.weight, self._eps, self._offset)
        return pair

    def _op(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the op of this name that writes what the reader multiplies."""
        kernels = None if self._reader is None else self._reader.input_kernels()
        return plain if kernels is None else getattr(kernels, name)


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
        self._add_norm = context.ops.add_layer_norm
        if weight is not None:
            weights.add(
                f"{prefix}.weight",
                (width,),
                lambda tensor: _assign_with_offset(weight, tensor, spec.offset),
            )
        if bias is not None:
            weights.add(f"{prefix}.bias", (width,), lambda tensor: assign_weight(bias, tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        return self._norm(x, self.weight, self.bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum."""
        return self._add_norm(x, residual, self.weight, self.bias, self._eps)


class Affine(nn.Module):
    """(x + bias) * weight, in the place of a norm."""

    def __init__(
        self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        del spec
        self.weight = empty_parameter(width, dtype=context.dtype)
        self.bias = empty_parameter(width, dtype=context.dtype)
        for name, parameter in (("weight", self.weight), ("bias", self.bias)):
            load = partial(copy_weight, parameter.data)
            weights.add(f"{prefix}.{name}", (width,), load)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with the addend and the factor of each channel."""
        return (x + self.bias) * self.weight

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result for the sum, and the sum."""
        total = x + residual
        return self.forward(total), total


class GatedNorm(nn.Module):
    """y * sigmoid(W2 silu(W1 y)), where y is the result of a norm."""

    def __init__(
        self, spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        plain = replace(spec, gate_rank=0)
        self._norm = make_norm(plain, width, context, weights, f"{prefix}.norm")
        rank = [Slice("rank", spec.gate_rank)]
        self.down = Linear(context, weights, f"{prefix}.W_down", width, rank)
        out = [Slice("gate", width)]
        self.up = Linear(context, weights, f"{prefix}.W_up", spec.gate_rank, out)
        self._silu = context.ops.silu
        self._sigmoid = context.ops.sigmoid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x, gated."""
        return self._gated(self._norm(x))

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum, gated, and the sum; may modify both inputs."""
        normed, total = self._norm.add(x, residual)
        return self._gated(normed), total

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.up(self._silu(self.down(x)))
        return (x * self._sigmoid(gate.float())).to(x.dtype)


Norm = RmsNorm | LayerNorm | Affine | GatedNorm
KINDS: Final[Mapping[str, type[RmsNorm | LayerNorm | Affine]]] = {
    "rms": RmsNorm,
    "layer": LayerNorm,
    "affine": Affine,
}


def make_norm(
    spec: NormSpec, width: int, context: BuildContext, weights: WeightMap, prefix: str
) -> Norm:
    """Return the norm layer of a spec, with tensors under `prefix`."""
    kind = GatedNorm if spec.gate_rank else KINDS[spec.kind]
    return kind(spec, width, context, weights, prefix)


def optional_norm(
    spec: NormSpec | None, width: int, context: BuildContext, weights: WeightMap, prefix: str
) -> Norm | None:
    """Return the norm layer of a spec; None for None."""
    return None if spec is None else make_norm(spec, width, context, weights, prefix)


class HeadsNorm(nn.Module):
    """A norm per head with separate weights for each head.

    The checkpoint has one tensor [heads, head_size], or one per head if `prefix` has a `{}`. Heads
    are split into `parts`; with fewer parts than ranks, ranks hold copies.
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
                f"{prefix}.weight",
                shape,
                lambda tensor: copy_weight(self.weight.data, tensor[part]),
            )
            return
        for head in range(heads):
            row = self.weight.data[head - own.start] if head in own else None
            weights.add(f"{prefix.format(head)}.weight", (size,), partial(_copy_own_row, row))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, heads, head_size] normalised."""
        return self._plain(x) * self.weight  # type: ignore[no-any-return]


def _without_weight(spec: NormSpec) -> NormSpec:
    return type(spec)(kind=spec.kind, eps=spec.eps, weight=False)


def _copy_own_row(row: torch.Tensor | None, tensor: torch.Tensor) -> None:
    if row is not None:
        copy_weight(row, tensor)


def _assign_with_offset(parameter: nn.Parameter, tensor: torch.Tensor, offset: float) -> None:
    if offset:  # the tensor may be mapped from the file and must not change
        copy_weight(parameter.data, tensor)
        parameter.data += offset
    else:
        assign_weight(parameter, tensor)
