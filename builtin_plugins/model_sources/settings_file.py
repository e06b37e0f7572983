"""Reads a model's settings files, which are untrusted: regular files of bounded size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from builtin_plugins.weight_loaders.api import open_regular
from core.api import ModelError

MAX_SETTINGS_BYTES: Final = 16 << 20
"""Size limit of a settings file; parsed, it takes up to 30 times as much memory."""
MAX_DEPTH: Final = 64
"""Limit of nested objects and lists in a settings file."""
_ADVICE: Final = "Restore it from the model's source."


def read_settings_text(path: Path, max_bytes: int = MAX_SETTINGS_BYTES) -> str:
    """Return the text of a file, without a byte order mark.

    Raises `ModelError` for files that are no regular ones, too large, or not UTF-8.
    """
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ModelError(f"{path} cannot be read: {reason or error}. {_ADVICE}") from error
    if len(content) > max_bytes:
        raise ModelError(f"{path}: got more than {max_bytes} bytes; expected fewer. {_ADVICE}")
    return text


def read_settings_json(path: Path, max_bytes: int = MAX_SETTINGS_BYTES) -> Any:
    """Return the JSON value of a file. Raises `ModelError` for an invalid or too deep one."""
    try:
        value = json.loads(read_settings_text(path, max_bytes))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}. {_ADVICE}") from error
    if _is_deep(value):
        raise ModelError(
            f"{path}: got more than {MAX_DEPTH} nested values; expected fewer. {_ADVICE}"
        )
    return value


def read_settings_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises `ModelError` for any other value."""
    value = read_settings_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object. {_ADVICE}")
    return value


def _is_deep(value: Any) -> bool:
    """Return whether values are nested deeper than the limit."""
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [item for item in level if isinstance(item, (dict, list)) and item]
        level = [
            inner
            for item in nested
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)
