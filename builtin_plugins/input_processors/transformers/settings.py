"""Checks the settings of an image processor, which are read from files, before they are used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from core.api import ModelError

FILE: Final = "preprocessor_config.json"
MAX_NUMBER: Final = 2**31
"""Largest absolute value of any setting."""
MAX_PIXELS: Final = 2**28
"""Largest area of a resized image."""
MAX_EDGE: Final = 2**15
MAX_PATCH: Final = 2**10
MAX_VALUES: Final = 10_000
"""Largest number of values in all settings."""
SIZES: Final = ("size", "crop_size", "pad_size")
EDGES: Final = ("height", "width")
AREAS: Final = {"shortest_edge", "longest_edge"}
"""Names of which processors that have both mean areas (Qwen2-VL)."""
PATCHES: Final = ("patch_size", "merge_size", "temporal_patch_size")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `ModelError` for a setting that no processor can mean."""
    _check_numbers(settings)
    for name in SIZES:
        _check_size(name, settings.get(name))
    for name in PATCHES:
        value = settings.get(name)
        edges = value.values() if isinstance(value, Mapping) else [value]  # Pixtral has two
        for edge in edges:
            _check(name, value, is_valid=edge is None or _is_count(edge, MAX_PATCH))
    deviations = settings.get("image_std") or ()
    listed = deviations if isinstance(deviations, (list, tuple)) else [deviations]
    _check("image_std", deviations, is_valid=all(listed))


def _check_numbers(settings: Mapping[str, Any]) -> None:
    pending = list(settings.items())
    for number, (name, value) in enumerate(pending):
        if number > MAX_VALUES:
            raise ModelError(
                f"{FILE}: got more than {MAX_VALUES} values; expected fewer. Restore the "
                "original file."
            )
        if isinstance(value, Mapping):
            pending += [(f"{name}.{inner}", each) for inner, each in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(name, each) for each in value]
        elif isinstance(value, (int, float)) and name not in PATCHES:
            _check(name, value, is_valid=math.isfinite(value) and abs(value) <= MAX_NUMBER)


def _check_size(name: str, size: Any) -> None:
    stated = size if isinstance(size, Mapping) else {"height": size, "width": size}
    is_area = stated.keys() >= AREAS
    for key, value in stated.items():
        limit = MAX_PIXELS if is_area else MAX_EDGE
        _check(f"{name}.{key}", value, is_valid=value is None or _is_count(value, limit))
    height, width = (stated.get(edge) or 1 for edge in EDGES)
    _check(name, size, is_valid=height * width <= MAX_PIXELS)


def _is_count(value: Any, limit: int) -> bool:
    return type(value) is int and 0 < value <= limit


def _check(name: str, value: Any, *, is_valid: bool) -> None:
    if not is_valid:
        raise ModelError(
            f"{FILE}: {name:.80}: got {value!r:.80}; expected a value that an image can be "
            "processed with. Restore the original file."
        )
