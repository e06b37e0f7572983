"""A quantization method: how linear layers keep their weights.

This one rounds plain weights to eight bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from core.api import LinearMethod, Part


MOST_ERROR = 0.01
"""Share of their size that products may be off by: the conformance suite measures."""


class Acme:
    """Decides how each linear layer keeps its weights. Given the checkpoint's quantization config."""

    name = "acme"

    def __init__(self, config: Any = None) -> None:
        pass

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method for the layer with this weight prefix."""
        return EightBits()


class EightBits:
    """Whole numbers from -127 to 127, and a scale per output row."""

    suffixes: tuple[str, ...] = ("weight",)

    def create(
        self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the rounded weights and their scales."""
        layer.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        layer.register_buffer("scale", torch.zeros(out_features, 1, dtype=dtype))

    def load(self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Round this rank's part of a checkpoint's weight; it goes into the rows of the layer that
        the part names.
        """
        for rows, own in part.plain(tensor.float()):
            scale = own.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            layer.get_buffer("weight")[rows] = (own / scale).round().to(torch.int8)
            layer.get_buffer("scale")[rows] = scale.to(layer.get_buffer("scale").dtype)

    def finish(self, layer: torch.nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, [..., out_features]."""
        return (x @ layer.get_buffer("weight").to(x.dtype).T) * layer.get_buffer("scale").to(
            x.dtype
        ).T
