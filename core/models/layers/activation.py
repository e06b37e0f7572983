"""Activations by name: an op where there is one, else a few lines of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.models.layers.weights import WeightMap, empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext

Activation = Callable[[torch.Tensor], torch.Tensor]


def make_activation(
    name: str, *, gated: bool, prefix: str, context: BuildContext, weights: WeightMap
) -> Activation:
    """Return the function of an activation (one of `core.model_spec.decoder.ACTIVATIONS`).

    A gated one takes [..., gate | up] and gives half as many columns. Parameters are read from
    `prefix`.
    """
    op: Activation | None = getattr(context.ops, f"{name}_and_mul" if gated else name, None)
    if op is not None:
        return op
    plain = Xielu(context, weights, prefix) if name == "xielu" else PLAIN[name]
    return _gated(plain) if gated else plain


class Xielu(nn.Module):
    """Quadratic where positive, bent exponentially below; how much of each is learned per layer."""

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
            weights.add(f"{prefix}.{name}", shape, partial(fill, parameter.data))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many columns as x has."""
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
"""Those without an op and without parameters."""
