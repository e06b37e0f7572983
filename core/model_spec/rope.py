"""Rotary embeddings as data, and their reading from config.json: size, base and context scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from core.errors import ModelError, did_you_mean


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Linear scaling: all angles are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Dynamic NTK scaling: texts beyond `original` tokens have a base for the served context."""

    factor: float
    original: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3 scaling: low frequencies are divided by `factor`, high ones unchanged."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ModelError(
                f"high_freq_factor: got {self.high_freq_factor}; expected more than "
                f"low_freq_factor {self.low_freq_factor}."
            )


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN: interpolation and extrapolation are blended per dimension.

    Cosines and sines are multiplied by `attention_factor`.
    """

    factor: float
    original: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE: one divisor per angle, from `long` for texts of more than `original` tokens.

    Cosines and sines are multiplied by the attention factor of the same list.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    short_attention_factor: float
    long_attention_factor: float


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """Partial rotary over the whole head: only the first `share` of the angles is not 0.

    Angles are divided by `factor`.
    """

    share: float
    factor: float


RopeScaling = (
    LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongScaling | ProportionalScaling
)

BY_LENGTH: Final = (DynamicScaling, LongScaling)
"""Scalings with other factors for texts of up to `original` tokens."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `size` elements of a head."""

    size: int
    theta: float = 10_000.0
    interleaved: bool = False
    scaling: RopeScaling | None = None
    backwards: bool = False
    """Whether the rotation is reversed (NanoChat)."""
    sections: tuple[int, ...] = ()
    """Pairs rotated by each axis of multi-dimensional positions (M-RoPE); empty: all by the first.
    """
    interleaved_sections: bool = False
    """Whether the axes alternate from pair to pair; the first one has the pairs left over."""
    learned: bool = False
    """Whether the checkpoint has the logarithm of a factor for each frequency."""

    @property
    def short_context(self) -> int:
        """Longest text with factors of its own; 0 if one table serves all lengths."""
        return getattr(self.scaling, "original", 0) if isinstance(self.scaling, BY_LENGTH) else 0

    def axis_of_pairs(self) -> tuple[int, ...]:
        """Return the axis of positions that rotates each pair."""
        num_axes = len(self.sections)
        if not self.interleaved_sections:
            listed = [axis for axis, count in enumerate(self.sections) for _ in range(count)]
            return tuple(listed) or (0,) * (self.size // 2)
        turns = (divmod(pair, num_axes) for pair in range(self.size // 2))
        return tuple(axis if turn < self.sections[axis] else 0 for turn, axis in turns)

    def __post_init__(self) -> None:
        if self.size < 2 or self.size % 2:
            raise ModelError(
                f"rotary size: got {self.size}; expected a positive even number. Check "
                "head_dim and partial_rotary_factor."
            )
        if self.theta <= 1:
            raise ModelError(f"rope_theta: got {self.theta}; expected more than 1.")
        sizes = self.sections
        if any(type(n) is not int for n in sizes) or (sizes and sum(sizes) != self.size // 2):
            raise ModelError(
                f"mrope_section: got {list(self.sections)}; expected a sum of {self.size // 2}, "
                "half of the rotary size."
            )
        if isinstance(self.scaling, DynamicScaling) and self.size < 4:
            raise ModelError(
                f"rotary size with dynamic scaling: got {self.size}; expected at least 4."
            )
        if isinstance(self.scaling, LongScaling):
            for name, factors in (
                ("short_factor", self.scaling.short),
                ("long_factor", self.scaling.long),
            ):
                if len(factors) != self.size // 2:
                    raise ModelError(
                        f"{name} of the rotary scaling: got {len(factors)} values; "
                        f"expected {self.size // 2}."
                    )


TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
"""Rope types listed in error messages."""
_ALSO: Final = ("mrope", "su", "ntk")
"""Model-specific rope types and former names."""
_ABOVE_0: Final = (
    "rope_theta",
    "factor",
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
    "short_mscale",
    "long_mscale",
    "original_max_position_embeddings",
)
_FROM_0: Final = ("mscale", "mscale_all_dim", "partial_rotary_factor")
_LISTS: Final = ("short_factor", "long_factor")


class Given(Protocol):
    """The fields of one config, typed (`core.model_spec.facts.ModelFacts`)."""

    def get(self, name: str, default: Any = None) -> Any: ...

    def number(self, name: str, default: float | None = None) -> float: ...

    def numbers(self, name: str) -> tuple[float, ...]: ...

    def flag(self, name: str, default: bool = False) -> bool: ...


def check_rope(name: str, given: Mapping[str, Any]) -> None:
    """Raise `ModelError` for impossible rope settings, even if their type does not read them.

    `name` is the config field of `given`, which may hold one object per layer type.
    """
    if given and all(isinstance(value, Mapping) for value in given.values()):
        for layer_type, inner in given.items():
            check_rope(f"{name}.{layer_type}", inner)
        return
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in TYPES and kind not in _ALSO:
        raise unknown_type(kind, f"config.json: {name}: ")
    for field, value in given.items():
        if value is None:
            continue
        if field in _ABOVE_0 and not _is_number(value, above=True):
            raise _impossible(name, field, value, "a positive number")
        if field in _FROM_0 and not _is_number(value, above=False):
            raise _impossible(name, field, value, "a number of at least 0")
        if field in _LISTS and not (
            isinstance(value, (list, tuple)) and all(_is_number(v, above=True) for v in value)
        ):
            raise _impossible(name, field, value, "a list of positive numbers")


def make_scaling(kind: Any, given: Given, original: int, positions: int) -> RopeScaling | None:
    """Return the scaling of a rope type; None if it has none. Raises `ModelError` for an unknown
    type.
    """
    match kind:
        case "default" | "mrope":
            return None
        case "linear":
            return LinearScaling(given.number("factor"))
        case "dynamic":
            return DynamicScaling(given.number("factor"), positions)
        case "llama3":
            low = given.number("low_freq_factor")
            high = given.number("high_freq_factor")
            return Llama3Scaling(given.number("factor"), low, high, original)
        case "yarn":
            factor = given.number("factor", positions / original)
            fast = given.number("beta_fast", 32.0)
            slow = given.number("beta_slow", 1.0)
            attention = _yarn_attention_factor(given, factor)
            return YarnScaling(
                factor, original, attention, fast, slow, given.flag("truncate", True)
            )
        case "longrope" | "su":
            factor = given.number("factor", positions / original)
            attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
            attention = given.number("attention_factor", attention)
            short = given.numbers("short_factor")
            long = given.numbers("long_factor")
            scales = given.number("short_mscale", attention), given.number("long_mscale", attention)
            return LongScaling(short, long, original, *scales)
    raise unknown_type(kind)


def unknown_type(kind: Any, where: str = "") -> ModelError:
    """Return the error for an unknown rope type."""
    hint = did_you_mean(str(kind), TYPES) or "."
    return ModelError(
        f"{where}rotary scaling {kind!r:.100} is not known; known: {', '.join(TYPES)}{hint}"
    )


def _yarn_attention_factor(given: Given, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    both = given.get("mscale") and given.get("mscale_all_dim")
    ratio = (
        mscale(given.number("mscale")) / mscale(given.number("mscale_all_dim"))
        if both
        else mscale(1.0)
    )
    return given.number("attention_factor", ratio)


def _is_number(value: Any, *, above: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < math.inf:
        return False
    return value > 0 if above else value >= 0


def _impossible(name: str, field: str, value: Any, expected: str) -> ModelError:
    return ModelError(f"config.json: {name}.{field} is {value!r:.100}; it must be {expected}.")
