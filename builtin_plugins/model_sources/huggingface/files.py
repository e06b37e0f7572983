"""Reads a model's settings files as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.api import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a file. Raises `ModelError` naming file and fault."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON: {error}. Restore it from where the model came."
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object. Restore it from where the model came.")
    return value
