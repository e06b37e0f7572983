"""JSON headers of files. Knows no format: whoever reads a header checks what it says."""

from __future__ import annotations

import json
from typing import Any


def read_header(text: bytes) -> Any:
    """Return the value of a header in UTF-8.

    Raises `ValueError` for what is no JSON, and for an object that has a name twice: who is right
    then, no reader can say.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_each_once
        )  # bytes would be taken in other encodings, too
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {name!r:.100} twice")
        found[name] = value
    return found
