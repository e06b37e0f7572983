"""The feed-forward part of a layer, gated or plain, and activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.norm import optional_norm
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter
from core.models.ops.activations import GATED, clamped

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.layer import MlpSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.weights import WeightMap


class Mlp(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    def __init__(
        self,
        spec: MlpSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        fused = bool(names.gate_up)
        slices = [Slice("up", spec.width, "" if fused else f"{layer}.{names.up}")]
        if spec.gated:
            slices.insert(0, Slice("gate", spec.width, "" if fused else f"{layer}.{names.gate}"))
        self.up = Linear(
            context,
            weights,
            f"{layer}.{names.gate_up or names.up}",
            hidden,
            slices,
            split="rows",
            bias=spec.bias,
            transposed=names.transposed,
            order=[1, 0] if fused and names.up_first else None,
        )
        self.down = Linear(
            context,
            weights,
            f"{layer}.{names.down}",
            spec.width,
            [Slice("down", hidden)],
            split="columns",
            bias=spec.bias if spec.out_bias is None else spec.out_bias,
            transposed=names.transposed,
        )
        self.activate = make_activation(
            spec.activation,
            gated=spec.gated,
            prefix=f"{layer}.{names.activation}",
            context=context,
            weights=weights,
        )
        if spec.limit is not None:
            self.activate = partial(clamped, self.activate, limit=spec.limit)
        self._gated_linear = _gated_linear(spec, self.up, context)
        self._activation = spec.activation
        self._group = context.group
        self._gate_scale = spec.gate_scale
        self._out_scale = spec.out_scale
        self.learned_scale = expect_scalar(
            spec.learned_scale, f"{layer}.{names.mlp_scale}", weights
        )
        prefix = f"{layer}.{names.mlp_inner}"
        self.inner_norm = optional_norm(spec.inner_norm, spec.width, context, weights, prefix)
        has_op = hasattr(context.ops, f"{spec.activation}_and_mul")
        is_plain = self.inner_norm is None and spec.limit is None
        self._may_quantize = spec.gated and has_op and is_plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        x = self._activated(x)
        if self.inner_norm is not None:
            x = self._group.cut(self.inner_norm(self._group.all_gather(x)), 1)
        x = self.down(x)
        if self.learned_scale is not None:
            x = x * self.learned_scale.to(x.dtype)
        return x if self._out_scale == 1.0 else x * self._out_scale

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(gate(x)) * up(x), or activation(up(x)) without a gate, as `down` or the
        inner norm reads it.
        """
        if self._gated_linear is not None and self.up.adapter is None:
            return self._gated_linear(x, self.up.get_parameter("weight"), bias=self.up.bias)
        x = self.up(x)
        if self._gate_scale != 1.0:
            x[:, self.up.slices["gate"]] *= self._gate_scale
        kernels = self.down.input_kernels() if self._may_quantize else None
        return self.activate(x) if kernels is None else kernels.gated(x, self._activation)


def expect_scalar(stored: bool, name: str, weights: WeightMap) -> nn.Parameter | None:
    """Return a stored scalar [1] in float32; None if it is not `stored`."""
    if not stored:
        return None
    scalar = empty_parameter(1, dtype=torch.float32)
    weights.add(name, (1,), partial(copy_weight, scalar.data))
    return scalar


Activation = Callable[[torch.Tensor], torch.Tensor]


def make_activation(
    name: str, *, gated: bool, prefix: str, context: BuildContext, weights: WeightMap
) -> Activation:
    """Return an activation function (one of `core.model_spec.layer.ACTIVATIONS`).

    A gated one maps [..., gate | up] to half as many columns. Its parameters are read from
    `prefix`.
    """
    reference = GATED.get(name) if gated else None
    op: Activation | None = getattr(context.ops, f"{name}_and_mul" if gated else name, reference)
    if op is not None:
        return op
    plain = Xielu(context, weights, prefix) if name == "xielu" else PLAIN[name]
    return _gated(plain) if gated else plain


def _gated_linear(
    spec: MlpSpec, up: Linear, context: BuildContext
) -> Callable[..., torch.Tensor] | None:
    """Return product and activation as one op, where the device has it for such a layer."""
    applies = getattr(type(up.method), "apply", None)
    is_plain = applies is PlainLinear.apply and spec.gate_scale == 1.0 and spec.limit is None
    known = hasattr(context.ops, f"{spec.activation}_and_mul")
    op = context.ops.gated_linear
    if op is None or not (spec.gated and is_plain and known):
        return None
    return partial(op, activation=spec.activation)


class Xielu(nn.Module):
    """xIELU: quadratic for positive inputs, exponential for negative ones, with learned factors."""

    def __init__(self, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__()
        self.alpha_p: nn.Parameter
        self.alpha_n: nn.Parameter
        self.beta: nn.Parameter
        self.eps: nn.Parameter
        shapes: dict[str, tuple[int, ...]] = {
            "alpha_p": (1,),
            "alpha_n": (1,),
            "beta": (),
            "eps": (),
        }
        for name, shape in shapes.items():
            parameter = empty_parameter(*shape, dtype=context.dtype)
            self.register_parameter(name, parameter)
            weights.add(f"{prefix}.{name}", shape, partial(copy_weight, parameter.data))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of x, with the same shape."""
        positive = F.softplus(self.alpha_p)
        negative = self.beta + F.softplus(self.alpha_n)
        above = positive * x * x
        below = (torch.expm1(torch.minimum(x, self.eps)) - x) * negative
        return torch.where(x > 0, above, below) + self.beta * x


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


def _gated(activation: Activation) -> Activation:
    def gated(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return activation(gate) * up

    return gated


PLAIN: Final[dict[str, Activation]] = {"relu2": _relu2}
"""Activations without an op and without parameters."""
