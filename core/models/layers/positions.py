"""Position encodings: rotary tables, sinusoids, and T5's relative position bias.

Each rotary variant has one table of cosines and sines, shared by its layers. Of a variant that
depends on the length of a text, the table has the factors of the longest context served, so a
cached key depends on its position only. Those of short texts follow, for features that tell short
texts from long ones: their positions are shifted by the length of the first part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    RopeSpec,
    YarnScaling,
)
from core.models.layers.embedding import expect_table
from core.models.layers.weights import assign_weight, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import RelativeBiasSpec
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.weights import WeightMap


class Rotary:
    """Applies RoPE to queries and keys, up to `max_positions`."""

    def __init__(self, spec: RopeSpec, max_positions: int, context: BuildContext) -> None:
        self.cos_sin: torch.Tensor
        self._spec = spec
        self._max_positions = max_positions
        self._device = context.device
        self.interleaved = spec.interleaved
        self.step_cos_sin: torch.Tensor | None = None
        """[num_tokens, size] of this step's tokens, if they have multi-dimensional positions."""
        self._rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] = context.ops.rotary
        self._log_factors: torch.Tensor | None = None

    def expect_factors(self, name: str, weights: WeightMap) -> None:
        """Expect the logarithms of the learned factors of the frequencies."""
        factors = empty_parameter(self._spec.size // 2, dtype=torch.float32)
        weights.add(name, factors.shape, lambda tensor: assign_weight(factors, tensor))
        self._log_factors = factors

    def finish(self) -> None:
        """Compute the table; called after loading, which validates the sizes in the config."""
        factors = self._log_factors
        if factors is not None and factors.is_meta:  # a memory plan has no values
            factors = None
        table = cos_sin_table(self._spec, self._max_positions, factors)
        short = self._spec.short_context
        if 0 < short < self._max_positions:
            table = torch.cat((table, cos_sin_table(self._spec, short)))
        self.cos_sin = table.to(self._device)

    def begin_step(self, rope_positions: torch.Tensor | None) -> None:
        """Set the multi-dimensional positions [axes, num_tokens] of a step; None: it has none.

        Such positions may exceed the table, so their cosines and sines are computed.
        """
        self.step_cos_sin = None
        if rope_positions is not None:
            frequencies, factor = inverse_frequencies(self._spec, self._max_positions)
            if self._log_factors is not None:
                frequencies = frequencies * self._log_factors.cpu().exp()
            axes = torch.tensor(self._spec.axis_of_pairs(), device=rope_positions.device)
            by_pair = rope_positions.index_select(0, axes).T.float()  # [num_tokens, pairs]
            angles = by_pair * frequencies.to(rope_positions.device)
            self.step_cos_sin = _cos_sin(angles, factor, backwards=self._spec.backwards)

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and key after RoPE; both may be modified in place."""
        return self._rotary(query, key, *self.table(positions), self.interleaved)

    def table(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a table of cosines and sines, and the row of each token of the step."""
        if self.step_cos_sin is None:
            return self.cos_sin, positions
        return self.step_cos_sin, torch.arange(len(self.step_cos_sin), device=positions.device)


def cos_sin_table(
    spec: RopeSpec, max_positions: int, log_factors: torch.Tensor | None = None
) -> torch.Tensor:
    """Return [max_positions, spec.size] float32: cosines, then sines, of each position.

    `log_factors`: logarithms of factors of the frequencies.
    """
    with torch.device("cpu"):
        frequencies, factor = inverse_frequencies(spec, max_positions)
        if log_factors is not None:
            frequencies = frequencies * log_factors.cpu().exp()
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        return _cos_sin(angles, factor, backwards=spec.backwards)


def _cos_sin(angles: torch.Tensor, factor: float, *, backwards: bool) -> torch.Tensor:
    """Return the cosines, then the sines, of angles [n, pairs]."""
    count, pairs = angles.shape
    table = angles.new_empty(count, 2 * pairs)
    torch.cos(angles, out=table[:, :pairs])
    torch.sin(-angles if backwards else angles, out=table[:, pairs:])
    return table if factor == 1.0 else table.mul_(factor)


def inverse_frequencies(spec: RopeSpec, max_positions: int) -> tuple[torch.Tensor, float]:
    """Return inverse frequencies, float32 [spec.size / 2], and the factor on cosines and sines."""
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
            rotated = torch.arange(size // 2) < int(share * size // 2)
            return torch.where(rotated, plain / factor, 0.0), 1.0
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
        """Return the pair with that many rotations over the original context."""
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
    extrapolation = 1 - torch.clamp((pairs - low) / (high - low), 0, 1)
    periods = spec.theta**exponents
    interpolated = (1.0 / (scaling.factor * periods)) * (1 - extrapolation)
    return interpolated + (1.0 / periods) * extrapolation


def expect_sinusoids(
    table: torch.Tensor, kind: bool | str, prefix: str, weights: WeightMap
) -> None:
    """Fill a position table: from the checkpoint if it has one, else with sinusoids."""
    stored = False

    def take(tensor: torch.Tensor) -> None:
        nonlocal stored
        if tensor.ndim != 2 or tensor.shape[1] != table.shape[1] or len(tensor) < len(table):
            raise ModelError(
                f"has shape {list(tensor.shape)}; expected at least {list(table.shape)}. "
                "Lower --max-model-len."
            )
        stored = True
        copy_weight(table, tensor[: len(table)])

    def compute() -> None:
        if not stored:
            table.copy_(sinusoids(*table.shape, wide=kind == "wide"))

    weights.add_alternative(f"{prefix}.weight", None, take, of=())
    weights.after_load(compute)


def position_table(
    spec: DecoderSpec, width: int, context: BuildContext, weights: WeightMap
) -> nn.Parameter | None:
    """Return the learned or sinusoidal position embeddings; None without either."""
    name = spec.names.positions
    if spec.learned_positions:
        size = (spec.learned_positions + spec.position_offset, width)
        return expect_table(size, name, context, weights)
    if not spec.sinusoidal_positions:
        return None
    table = empty_parameter(spec.max_positions + spec.position_offset, width, dtype=context.dtype)
    expect_sinusoids(table.data, spec.sinusoidal_positions, name, weights)
    return table


def sinusoids(rows: int, size: int, *, wide: bool = False) -> torch.Tensor:
    """Return [rows, size] float32: sines, then cosines, of each position.

    The last of `half` frequencies is 1 / 10000 or, if `wide`, the frequency after it would be.
    """
    with torch.device("cpu"):
        half = size // 2
        frequencies = torch.exp(
            torch.arange(half) * -(math.log(10_000) / (half if wide else half - 1))
        )
        angles = torch.arange(rows)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos(), torch.zeros(rows, size % 2)], dim=1)


class RelativeBias(nn.Module):
    """The checkpoint's [buckets, heads], expanded to distances
    (`AttentionParams.distance_bias`).
    """

    def __init__(
        self,
        spec: RelativeBiasSpec,
        heads: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
    ) -> None:
        super().__init__()
        own = context.group.share(heads, "num_attention_heads")
        self.by_distance: torch.Tensor
        self.register_buffer(
            "by_distance", torch.empty(own, 2 * spec.max_distance + 1, dtype=torch.float32)
        )
        shares = bucket_of_distances(spec)

        def spread(tensor: torch.Tensor) -> None:
            mine = context.group.cut(tensor, 1).T.float()  # [own, numbers]
            self.by_distance.copy_(mine.index_select(1, shares.to(mine.device)))

        weights.add(f"{prefix}.weight", (spec.num_buckets, heads), spread)

    def for_length(self, length: int) -> torch.Tensor:
        """Return the bias for sequences up to `length`, for the op `full_attention`."""
        max_distance = self.by_distance.shape[1] // 2
        offsets = torch.arange(1 - length, length, device=self.by_distance.device)
        return self.by_distance[:, offsets.clamp(-max_distance, max_distance) + max_distance]


def bucket_of_distances(spec: RelativeBiasSpec) -> torch.Tensor:
    """Return the bucket of each distance from -max_distance to max_distance, int64."""
    with torch.device("cpu"):
        offsets = torch.arange(-spec.max_distance, spec.max_distance + 1)
        numbers = spec.num_buckets // 2 if spec.bidirectional else spec.num_buckets
        distance = offsets.abs() if spec.bidirectional else (-offsets).clamp(min=0)
        exact = numbers // 2
        ratio = torch.log(distance.float() / exact) / math.log(spec.max_distance / exact)
        wider = exact + (ratio * (numbers - exact)).clamp(min=0).to(torch.int64)
        share = torch.where(distance < exact, distance, wider.clamp(max=numbers - 1))
        return share + numbers * (offsets > 0) if spec.bidirectional else share
