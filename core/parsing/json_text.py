"""JSON as models write it: text to values and back, with one error for all that can be wrong."""

from __future__ import annotations

import json
from typing import Any


class Broken(Exception):
    """What was read is not what the format says."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text, control characters in strings allowed. Raises `Broken` for what is none.

    Python's `NaN` and `Infinity`, which JSON has not, are their names.
    """
    try:
        return json.loads(text, strict=False, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise Broken from error


def write_json(value: Any) -> str:
    """Return a value as JSON text. Raises `Broken` for what JSON has not."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Broken from error
