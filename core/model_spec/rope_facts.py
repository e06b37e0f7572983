"""What a config says of stretched rotary positions: checked as it stands there, and made into
facts.

Knows the types and their fields, of old and new config files; knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

from core.errors import ModelError, did_you_mean
from core.model_spec.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
)

TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
"""Types that are told when one is not known."""
_ALSO: Final = ("mrope", "su", "ntk")
"""Types of single models, and former names."""
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
    """Raise `ModelError` for settings that no rotary positions can have, whether or not their type
    reads them.

    `name` is the field that holds them, by type of layer or as they are.
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
            raise _impossible(name, field, value, "a number, and not negative")
        if field in _LISTS and not (
            isinstance(value, (list, tuple)) and all(_is_number(v, above=True) for v in value)
        ):
            raise _impossible(name, field, value, "a list of positive numbers")


def make_scaling(kind: Any, given: Given, original: int, positions: int) -> RopeScaling | None:
    """Return the scaling of one type; None for the type that has none.

    Raises `ModelError` for an unknown one.
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


def unknown_type(kind: Any, place: str = "") -> ModelError:
    """Return the error for a type nobody knows."""
    hint = did_you_mean(str(kind), TYPES) or "."
    return ModelError(
        f"{place}rotary scaling {kind!r:.100} is not known; known: {', '.join(TYPES)}{hint}"
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


def _impossible(name: str, field: str, value: Any, wanted: str) -> ModelError:
    return ModelError(f"config.json: {name}.{field} is {value!r:.100}; it must be {wanted}.")
