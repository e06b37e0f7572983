"""A quantization method: how linear layers store their weights.

This one quantizes weights to int8 at load time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from core.model_spec.quant_method import LinearMethod
    from core.model_spec.weight_shard import WeightShard


MAX_ERROR = 0.01
"""Maximum relative error of products, measured by the conformance suite."""


class Acme:
    """Creates the method of each linear layer, from the checkpoint's quantization config."""

    name = "acme"

    def __init__(self, config: Any = None) -> None:
        pass

    def linear(self, prefix: str) -> LinearMethod:
        """Return the method for the layer with this weight prefix."""
        return EightBits()


class EightBits:
    """Int8 weights with one scale per output row."""

    suffixes: tuple[str, ...] = ("weight",)

    def create(
        self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the quantized weights and their scales."""
        layer.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        layer.register_buffer("scale", torch.zeros(out_features, 1, dtype=dtype))

    def load(
        self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard
    ) -> None:
        """Quantize this rank's shard of a weight into the rows that the shard names."""
        for rows, own in part.plain(tensor.float()):
            scale = own.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            layer.get_buffer("weight")[rows] = (own / scale).round().to(torch.int8)
            layer.get_buffer("scale")[rows] = scale.to(layer.get_buffer("scale").dtype)

    def finish(self, layer: torch.nn.Module) -> None:
        """Do nothing: the weights need no repacking."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, [..., out_features]."""
        weight = layer.get_buffer("weight").to(x.dtype)
        scale = layer.get_buffer("scale").to(x.dtype)
        return (x @ weight.T) * scale.T
