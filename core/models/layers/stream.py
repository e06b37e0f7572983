"""The stream of vectors through a model's layers: how a part reads it, and how what the part gives
is added.

The stream is `x + residual`: the newest part travels apart, so that adding and norm are one op.
Knows no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from core.models.layers.norm import Norm


@dataclass(slots=True)
class Step:
    """What the layers of one forward pass have in common."""

    positions: torch.Tensor
    plans: Sequence[Any]
    """Of all caching layers; the last is that of layers which cache nothing."""
    embedded: torch.Tensor | None = None
    """The tokens' embedding, where layers read it."""
    made: torch.Tensor | None = None
    """[positions, hidden]: what the encoder made of the inputs of this step, if any."""
    own: torch.Tensor | None = None
    """[n, size]: the layer's own embedding of each token."""
    late: torch.Tensor | None = None
    """What experts of the layer before gave, to be added behind this one."""


Part = Callable[[torch.Tensor, torch.Tensor, Step], torch.Tensor]
"""From what it reads, the stream and the step to what is added."""
Halves = tuple[torch.Tensor, torch.Tensor | None]


class Added(nn.Module):
    """The part reads the stream, normalised; what it gives, perhaps normalised too, is added."""

    def __init__(self, norm_in: Norm | None, norm_out: Norm | None, scale: float = 1.0) -> None:
        super().__init__()
        self.norm_in = norm_in
        self.norm_out = norm_out
        self._scale = scale

    def forward(
        self, part: Part, x: torch.Tensor, residual: torch.Tensor | None, step: Step
    ) -> Halves:
        """Return the halves of the stream behind the part."""
        inner, stream = join(self.norm_in, x, residual)
        out = part(inner, stream, step)
        if self.norm_out is not None:
            out = self.norm_out(out)
        return (out if self._scale == 1.0 else out * self._scale), stream


class NormedSum(nn.Module):
    """The part reads the stream as it is; the sum of both is normalised."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(
        self, part: Part, x: torch.Tensor, residual: torch.Tensor | None, step: Step
    ) -> Halves:
        """Return the stream behind the part; it has one half."""
        assert residual is None, "a sum is whole"
        return self.norm.add(part(x, x, step), x)[0], None


class NormedStream(nn.Module):
    """The stream itself is normalised; it and what the part makes of it have factors."""

    def __init__(self, norm: Norm, factors: tuple[float, float]) -> None:
        super().__init__()
        self.norm = norm
        self._kept, self._added = factors

    def forward(
        self, part: Part, x: torch.Tensor, residual: torch.Tensor | None, step: Step
    ) -> Halves:
        """Return the stream behind the part; it has one half."""
        assert residual is None, "a sum is whole"
        x = self.norm(x)
        return x * self._kept + part(x, x, step) * self._added, None


class Guided(nn.Module):
    """The part reads the stream and what a guide makes of it, the sum normalised; the stream gets
    the part's alone.
    """

    def __init__(self, norm_in: Norm | None, guide: Part) -> None:
        super().__init__()
        self.norm_in = norm_in
        self._guide = guide

    def forward(
        self, part: Part, x: torch.Tensor, residual: torch.Tensor | None, step: Step
    ) -> Halves:
        """Return the halves of the stream behind the part."""
        stream = join(None, x, residual)[1]
        guided = stream + self._guide(stream, stream, step)
        return part(guided if self.norm_in is None else self.norm_in(guided), stream, step), stream


Joint = Added | NormedSum | NormedStream | Guided


def join(
    norm: Norm | None, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the halves of the stream; return what the next part reads, and the stream."""
    if residual is None:
        return (x if norm is None else norm(x)), x
    if norm is None:
        total = x + residual
        return total, total
    return norm.add(x, residual)
