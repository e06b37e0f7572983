"""Rotary positions: one table of cosines and sines per variant, shared by the layers that use it.

A variant that depends on the length of the sequence is fixed by the longest context served, so that
a cached key is a function of its position alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from core.model_spec.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    RopeSpec,
    YarnScaling,
)

if TYPE_CHECKING:
    from core.contracts import BuildContext


class Rotary:
    """Turns queries and keys by their positions, up to `max_positions`."""

    def __init__(self, spec: RopeSpec, max_positions: int, context: BuildContext) -> None:
        self.cos_sin: torch.Tensor
        self._spec = spec
        self._max_positions = max_positions
        self._device = context.device
        self.interleaved = spec.interleaved
        self._rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] = context.ops.rotary

    def finish(self) -> None:
        """Make the table; called once, when the checkpoint has proven that the sizes in its config
        are real.
        """
        self.cos_sin = cos_sin_table(self._spec, self._max_positions).to(self._device)

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and key, turned; they may have been changed in place."""
        return self._rotary(query, key, self.cos_sin, positions, self.interleaved)


def cos_sin_table(spec: RopeSpec, max_positions: int) -> torch.Tensor:
    """Return [max_positions, spec.size] float32: cosines, then sines, of each position's angles."""
    with torch.device("cpu"):
        frequencies, factor = inverse_frequencies(spec, max_positions)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        table = torch.empty(max_positions, spec.size)
        torch.cos(angles, out=table[:, : spec.size // 2])
        torch.sin(-angles if spec.backwards else angles, out=table[:, spec.size // 2 :])
        return table if factor == 1.0 else table.mul_(factor)


def inverse_frequencies(spec: RopeSpec, max_positions: int) -> tuple[torch.Tensor, float]:
    """Return the angle per position of each pair, float32 [spec.size / 2], and the factor on
    cosines and sines.
    """
    scaling = spec.scaling
    size = spec.size
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    plain = 1.0 / (spec.theta**exponents)
    match scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor):
            return plain / factor, 1.0
        case DynamicScaling(factor, original):
            length = max(max_positions, original)
            theta = spec.theta * ((factor * length / original) - (factor - 1)) ** (
                size / (size - 2)
            )
            return 1.0 / (theta**exponents), 1.0
        case Llama3Scaling():
            return _llama3(plain, scaling), 1.0
        case YarnScaling():
            return _yarn(spec, exponents, scaling), scaling.attention_factor
        case ProportionalScaling(share, factor):
            turning = torch.arange(size // 2) < int(share * size // 2)
            return torch.where(turning, plain / factor, 0.0), 1.0
        case LongScaling():
            is_long = max_positions > scaling.original
            factors = torch.tensor(scaling.long if is_long else scaling.short)
            attention = scaling.long_attention_factor if is_long else scaling.short_attention_factor
            return 1.0 / (factors * spec.theta**exponents), attention


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelength = 2 * math.pi / plain
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    smooth = (scaling.original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    is_long = wavelength > scaling.original / low
    is_short = wavelength < scaling.original / high
    return torch.where(is_short, plain, torch.where(is_long, plain / scaling.factor, between))


def _yarn(spec: RopeSpec, exponents: torch.Tensor, scaling: YarnScaling) -> torch.Tensor:
    def dimension(rotations: float) -> float:
        """Return the pair that turns so many times over the original context."""
        return (
            spec.size
            * math.log(scaling.original / (rotations * 2 * math.pi))
            / (2 * math.log(spec.theta))
        )

    low = dimension(scaling.beta_fast)
    high = dimension(scaling.beta_slow)
    if scaling.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, spec.size - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(spec.size // 2, dtype=torch.float32)
    kept = 1 - torch.clamp((pairs - low) / (high - low), 0, 1)
    periods = spec.theta**exponents
    return (1.0 / (scaling.factor * periods)) * (1 - kept) + (1.0 / periods) * kept
