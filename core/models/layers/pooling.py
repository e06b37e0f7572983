"""The dense layers after a pooler, in float32 and on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.models.layers.weights import WeightMap, assign_weight, empty_parameter
from core.models.ops.reference import gelu_tanh, layer_norm, rms_norm

if TYPE_CHECKING:
    from core.model_spec.attention import NormSpec
    from core.model_spec.pooling import DenseSpec, PoolingSpec

ACTIVATIONS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "": lambda x: x,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


class PoolingHead(nn.Module):
    """The dense layers of a pooling model, in order."""

    def __init__(self, spec: PoolingSpec, width: int, weights: WeightMap) -> None:
        super().__init__()
        layers = []
        width = width * len(spec.poolers)
        for dense in spec.head:
            layers.append(Dense(dense, width, weights))
            width = dense.width
        self.layers = nn.ModuleList(layers)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, numbers] for pooled hidden states [n, hidden]."""
        x = pooled.float()
        for layer in self.layers:
            x = layer(x)
        return x


class Dense(nn.Module):
    """activation(x @ weight.T + bias), with an optional norm and residual."""

    def __init__(
        self,
        spec: DenseSpec,
        width: int,
        weights: WeightMap,
        linear: Callable[..., torch.Tensor] = F.linear,
    ) -> None:
        super().__init__()
        self._linear = linear
        self._residual = spec.residual
        self._activate = ACTIVATIONS[spec.activation]
        self.weight = self._expect("weight", (spec.width, width), f"{spec.name}.weight", weights)
        self.bias = (
            self._expect("bias", (spec.width,), f"{spec.name}.bias", weights) if spec.bias else None
        )
        self._norm: NormSpec | None = spec.norm
        norm = spec.norm
        name = spec.norm_name
        self.norm_weight = (
            self._expect("norm_weight", (spec.width,), f"{name}.weight", weights) if norm else None
        )
        has_bias = norm is not None and norm.bias
        self.norm_bias = (
            self._expect("norm_bias", (spec.width,), f"{name}.bias", weights) if has_bias else None
        )

    def _expect(
        self, name: str, shape: tuple[int, ...], stored: str, weights: WeightMap
    ) -> nn.Parameter:
        parameter = empty_parameter(*shape, dtype=torch.float32)
        self.register_parameter(name, parameter)
        weights.add(stored, shape, lambda tensor: assign_weight(parameter, tensor))
        return parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, width]."""
        out = self._activate(self._linear(x, self.weight, self.bias))
        if self._norm is not None and self.norm_weight is not None:
            if self._norm.kind == "layer":
                out = layer_norm(out, self.norm_weight, self.norm_bias, self._norm.eps)
            else:
                out = rms_norm(out, self.norm_weight, self._norm.eps, self._norm.offset)
        return x + out if self._residual else out
