"""Parsing of JSON file headers, without duplicate names."""

from __future__ import annotations

import json
from typing import Any


def read_header(text: bytes) -> Any:
    """Return the value of a JSON header in UTF-8.

    Raises `ValueError` for invalid JSON, and for an object with a duplicate name.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_each_once
        )  # json.loads would guess the encoding of bytes
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {name!r:.100} twice")
        found[name] = value
    return found
