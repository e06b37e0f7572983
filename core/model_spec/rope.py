"""Rotary positions as facts: how much of a head turns, how fast, and how a longer context stretches
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All angles divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """The base grows with the served context beyond `original` positions."""

    factor: float
    original: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ModelError(
                f"high_freq_factor {self.high_freq_factor} of the rotary scaling is not above "
                "low_freq_factor "
                f"{self.low_freq_factor}."
            )


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Interpolation and extrapolation blended per dimension; cosines and sines times
    `attention_factor`.
    """

    factor: float
    original: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongScaling:
    """One divisor per angle: the long ones when the served context exceeds `original`, else the
    short ones.

    Cosines and sines are multiplied by the factor of the same length.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    short_attention_factor: float
    long_attention_factor: float


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """Only the first `share` of the angles turns, as fast as if all did; all are divided by
    `factor`.
    """

    share: float
    factor: float


RopeScaling = (
    LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongScaling | ProportionalScaling
)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: the first `size` entries of a head turn, the others pass."""

    size: int
    theta: float = 10_000.0
    interleaved: bool = False
    scaling: RopeScaling | None = None
    backwards: bool = False
    """True: heads turn the other way, by the same angles, as NanoChat's do."""

    def __post_init__(self) -> None:
        if self.size < 2 or self.size % 2:
            raise ModelError(
                f"rotary size {self.size} is not a positive even number; check head_dim and "
                "partial_rotary_factor."
            )
        if self.theta <= 1:
            raise ModelError(
                f"rope_theta {self.theta} is not above 1, so no position would be told from "
                "another."
            )
        if isinstance(self.scaling, DynamicScaling) and self.size < 4:
            raise ModelError(
                f"dynamic rotary scaling needs a rotary size of at least 4, not {self.size}."
            )
        if isinstance(self.scaling, LongScaling):
            for name, factors in (
                ("short_factor", self.scaling.short),
                ("long_factor", self.scaling.long),
            ):
                if len(factors) != self.size // 2:
                    raise ModelError(
                        f"{name} of the rotary scaling has {len(factors)} values, not "
                        f"{self.size // 2}."
                    )
