"""Numbers and lists of a config, checked: what is none is a `ModelError` that names the field.

Knows no field.
"""

from __future__ import annotations

import math
from typing import Any

from core.errors import ModelError


def positive(name: str, value: Any) -> float:
    """Return a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ModelError(f"{name} in config.json is {value!r:.100}; it must be a positive number.")
    return float(value)


def items_of(name: str, value: Any) -> list[Any]:
    """Return the items of a list."""
    if not isinstance(value, (list, tuple)):
        raise ModelError(f"{name} in config.json is {value!r:.100}; it must be a list.")
    return list(value)
