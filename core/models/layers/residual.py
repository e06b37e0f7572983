"""The residual stream: how a sublayer reads it and how its output is added.

The stream is stored as two tensors, `x + residual`, so that the addition and the next norm are one
op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from core.model_spec.tower import ItemStates
    from core.models.layers.norm import Norm


@dataclass(slots=True)
class ForwardContext:
    """Inputs that all layers of one forward pass share."""

    positions: torch.Tensor
    plans: Sequence[Any]
    """Plans of the caching layers; the last one is for layers without a cache."""
    token_ids: torch.Tensor | None = None
    """[n] int64, for experts that are chosen by token."""
    embedded: torch.Tensor | None = None
    """Token embedding, if layers read it."""
    encoder_states: torch.Tensor | None = None
    """[positions, hidden]: encoder output of this step, if any."""
    item_states: ItemStates | None = None
    """Encoder states of items, and the tokens that read them."""
    per_layer_input: torch.Tensor | None = None
    """[n, size]: the current layer's own token embedding."""
    router_state: torch.Tensor | None = None
    """What the router of the previous layer projected, if this one adds it."""
    delayed_output: torch.Tensor | None = None
    """Output of the previous layer's delayed experts, or of this layer's early ones."""
    blocks: list[torch.Tensor] = field(default_factory=list)
    """Residual streams of earlier blocks of layers, which sublayers read."""
    streams: dict[str, torch.Tensor] = field(default_factory=dict)
    """Residual streams before earlier layers, which later ones mix into theirs."""


Sublayer = Callable[[torch.Tensor, torch.Tensor, ForwardContext], torch.Tensor]
"""Maps its input, the residual stream and the forward context to the output to add."""
ResidualPair = tuple[torch.Tensor, torch.Tensor | None]


class PreNormResidual(nn.Module):
    """Pre-norm: the sublayer reads the normalised stream; its output is optionally normalised and
    added.
    """

    def __init__(self, norm_in: Norm | None, norm_out: Norm | None, scale: float = 1.0) -> None:
        super().__init__()
        self.norm_in = norm_in
        self.norm_out = norm_out
        self._scale = scale

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the residual pair after the sublayer."""
        inner, stream = add_residual(self.norm_in, x, residual)
        out = part(inner, stream, step)
        if self.norm_out is not None:
            out = self.norm_out(out)
        return (out if self._scale == 1.0 else out * self._scale), stream


class PostNormResidual(nn.Module):
    """Post-norm: the sublayer reads the stream; the sum of stream and output is normalised."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the stream after the sublayer; the residual is None."""
        assert residual is None, "the previous layer returned a residual"
        return self.norm.add(part(x, x, step), x)[0], None


class NormedResidual(nn.Module):
    """The stream itself is normalised; stream and output are scaled and added."""

    def __init__(self, norm: Norm, factors: tuple[float, float]) -> None:
        super().__init__()
        self.norm = norm
        self._residual_scale, self._output_scale = factors

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the stream after the sublayer; the residual is None."""
        assert residual is None, "the previous layer returned a residual"
        x = self.norm(x)
        return x * self._residual_scale + part(x, x, step) * self._output_scale, None


class AffineResidual(nn.Module):
    """Pre-norm; the stream and the output have a stored addend and factor before they are added."""

    def __init__(self, norm_in: Norm | None, of_stream: Norm, of_output: Norm) -> None:
        super().__init__()
        self.norm_in = norm_in
        self.of_stream = of_stream
        self.of_output = of_output

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the stream after the sublayer; the residual is None."""
        inner, stream = add_residual(self.norm_in, x, residual)
        out = part(inner, stream, step)
        return self.of_stream(stream) + self.of_output(out), None


class GuidedResidual(nn.Module):
    """The sublayer reads the normalised sum of the stream and a guide's output (Zamba2).

    Only the sublayer's output is added to the stream.
    """

    def __init__(self, norm_in: Norm | None, guide: Sublayer) -> None:
        super().__init__()
        self.norm_in = norm_in
        self._guide = guide

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the residual pair after the sublayer."""
        stream = add_residual(None, x, residual)[1]
        guided = stream + self._guide(stream, stream, step)
        return part(guided if self.norm_in is None else self.norm_in(guided), stream, step), stream


ResidualJoin = PreNormResidual | PostNormResidual | NormedResidual | AffineResidual | GuidedResidual


def add_residual(
    norm: Norm | None, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next sublayer's input and the summed residual stream."""
    if residual is None:
        return (x if norm is None else norm(x)), x
    if norm is None:
        total = x + residual
        return total, total
    return norm.add(x, residual)
