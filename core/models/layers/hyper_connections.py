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
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import RmsNorm
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import GatedStreamsSpec, HyperConnectionSpec
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


class StreamNorm(nn.Module):
    """RMS norm of each stream, with a weight per channel of all; computed in float32."""

    def __init__(
        self,
        streams: int,
        hidden: int,
        eps: float,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._streams = streams
        self.weight = empty_parameter(streams * hidden, dtype=context.dtype)
        load = partial(copy_weight, self.weight.data)
        weights.add(f"{prefix}.weight", self.weight.shape, load)
        exact = replace(context, dtype=torch.float32)
        self.norm = RmsNorm(NormSpec(eps=eps, weight=False), hidden, exact, weights, "")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, streams * hidden]."""
        by_stream = x.float().view(len(x) * self._streams, -1)
        normed: torch.Tensor = self.norm(by_stream).view(x.shape) * (1.0 + self.weight.float())
        return normed.to(x.dtype)


class GatedMean(nn.Module):
    """The mean of the normalised streams, each channel of them gated."""

    def __init__(
        self,
        spec: GatedStreamsSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self._streams = spec.streams
        self._sigmoid = context.ops.sigmoid
        self._silu = context.ops.silu
        width = spec.streams * hidden
        low = [Slice("low", spec.rank)]
        high = [Slice("high", width)]
        name = f"{prefix}.input_mix_weight"
        within = (f"{prefix}.hc_norm", context, weights)
        self.norm = StreamNorm(spec.streams, hidden, spec.eps, *within)
        self.down = Linear(context, weights, f"{name}_down", width, low)
        self.up = Linear(context, weights, f"{name}_up", spec.rank, high)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        return self.read(x)[0]

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean, and the normalised streams."""
        normed = self.norm(x)
        gate = self._sigmoid(self.up(self._silu(self.down(normed) / self._streams)))
        return (gate * normed).view(len(x), self._streams, -1).mean(1), normed


class GatedStreams(nn.Module):
    """A sublayer reads the gated mean of the streams; its output is added to each."""

    def __init__(
        self,
        spec: GatedStreamsSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        count = spec.streams
        self._streams = count
        self._sigmoid = context.ops.sigmoid
        self.mean = GatedMean(spec, hidden, prefix, context, weights)
        name = f"{prefix}.block_inject_weight"
        self.write = Linear(context, weights, name, count * hidden, [Slice("write", count)])

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the streams after the sublayer; the residual is None."""
        assert residual is None, "the previous layer returned a residual"
        inner, normed = self.mean.read(x)
        written = 2.0 * self._sigmoid(self.write(normed) / self._streams)
        out = part(inner, inner, step)
        return x + (written[..., None] * out[:, None]).flatten(1), None


def doubly_stochastic(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Return matrices [n, k, k] with rows and columns that sum to about 1, by Sinkhorn's method."""
    found = logits.softmax(-1) + eps
    found = found / (found.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        found = found / (found.sum(-1, keepdim=True) + eps)
        found = found / (found.sum(-2, keepdim=True) + eps)
    return found
