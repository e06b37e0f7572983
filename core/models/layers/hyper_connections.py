"""Hyper-connections: several residual streams, read and written with weights they determine.

The streams of a token lie one after another, [n, streams * hidden].
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.attention import NormSpec
from core.models.layers.norm import RmsNorm
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import HyperConnectionSpec
    from core.models.layers.norm import Norm
    from core.models.layers.residual import ForwardContext, ResidualPair, Sublayer


class StreamWeights(nn.Module):
    """Numbers that are computed from the normalised streams: `sum(counts)` per token, in float32.

    Each of `counts` is a group of numbers with a scale of its own.
    """

    def __init__(
        self,
        spec: HyperConnectionSpec,
        hidden: int,
        counts: list[int],
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._counts = counts
        self._linear = context.ops.linear
        width = spec.streams * hidden
        exact = replace(context, dtype=torch.float32)
        self.norm = RmsNorm(NormSpec(eps=spec.norm_eps, weight=False), width, exact, weights, "")
        shapes = {
            "fn": (sum(counts), width),
            "base": (sum(counts),),
            "scale": (len(counts),),
        }
        for name, shape in shapes.items():
            parameter = empty_parameter(*shape, dtype=torch.float32)
            self.register_parameter(name, parameter)
            weights.add(f"{prefix}_{name}", shape, partial(copy_weight, parameter.data))

    def forward(self, streams: torch.Tensor) -> list[torch.Tensor]:
        """Return each group of numbers, [n, count]."""
        found = self._linear(self.norm(streams.float()), self.get_parameter("fn"))
        parts = torch.split(found, self._counts, -1)
        bases = torch.split(self.get_parameter("base"), self._counts)
        scales = self.get_parameter("scale").unbind()
        return [part * scale + base for part, scale, base in zip(parts, scales, bases, strict=True)]


class HyperConnection(nn.Module):
    """A sublayer reads a weighted sum of the streams; its output is added to each."""

    def __init__(
        self,
        spec: HyperConnectionSpec,
        hidden: int,
        norm: Norm | None,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.norm = norm
        self._spec = spec
        self._sigmoid = context.ops.sigmoid
        count = spec.streams
        counts = [count, count, count * count] if spec.iterations else [count, count]
        self.weights = StreamWeights(spec, hidden, counts, prefix, context, weights)

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the streams after the sublayer; the residual is None."""
        assert residual is None, "the previous layer returned a residual"
        spec = self._spec
        streams = x.view(len(x), spec.streams, -1)
        found = self.weights(x)
        read = self._sigmoid(found[0]) + spec.eps
        written = spec.magnitude * self._sigmoid(found[1]) + spec.output_eps
        inner = (read[..., None] * streams).sum(1).to(x.dtype)
        out = part(inner if self.norm is None else self.norm(inner), inner, step)
        if spec.iterations:
            mixing = found[2].view(-1, spec.streams, spec.streams)
            mixing = doubly_stochastic(mixing, spec.iterations, spec.eps)
            streams = mixing.to(x.dtype).transpose(1, 2) @ streams
        added = written[..., None] * out[:, None].float()
        return (streams + added.to(x.dtype)).flatten(1), None


class StreamSum(nn.Module):
    """The weighted sum of the streams after the last layer."""

    def __init__(
        self,
        spec: HyperConnectionSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._sigmoid = context.ops.sigmoid
        self.weights = StreamWeights(spec, hidden, [spec.streams], prefix, context, weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        read: torch.Tensor = self._sigmoid(self.weights(x)[0]) + self._spec.eps
        streams = x.view(len(x), self._spec.streams, -1)
        return (read[..., None] * streams).sum(1).to(x.dtype)


def doubly_stochastic(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Return matrices [n, k, k] with rows and columns that sum to about 1, by Sinkhorn's method."""
    found = logits.softmax(-1) + eps
    found = found / (found.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        found = found / (found.sum(-1, keepdim=True) + eps)
        found = found / (found.sum(-2, keepdim=True) + eps)
    return found
