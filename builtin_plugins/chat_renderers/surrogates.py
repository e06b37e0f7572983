"""Lone surrogates, which no valid text holds: in JSON as it is sent, and in its decoded values.

One rule for both: the two halves of a pair are one character, any other surrogate is U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from core.api import InvalidRequest

_ESCAPED: Final = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.",
    re.DOTALL,
)


def without_lone_surrogates(text: str) -> str:
    """Return a text with pairs joined, and U+FFFD in place of other surrogates."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_without_lone_surrogates(body: bytes) -> bytes:
    """Return JSON text without lone surrogates, written as bytes or as escapes.

    Raises `UnicodeDecodeError` for other bytes that are no UTF-8.
    """
    text = without_lone_surrogates(body.decode("utf-8", "surrogatepass")).encode()
    return _ESCAPED.sub(lambda found: found[0] if len(found[0]) != 6 else rb"\ufffd", text)


def value_without_lone_surrogates(value: Any) -> Any:
    """Return a value of a request without lone surrogates in its texts."""
    try:
        try:
            msgspec.json.encode(value)  # one fast pass in the common case
        except (UnicodeEncodeError, TypeError):
            return map_texts(without_lone_surrogates, value)
    except RecursionError as error:
        raise InvalidRequest("messages", "got values that are nested too deeply.") from error
    return value


def map_texts(change: Callable[[str], str], value: Any) -> Any:
    """Return a value with all its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(change, key): map_texts(change, each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        changed = [map_texts(change, each) for each in value]
        return tuple(changed) if isinstance(value, tuple) else changed
    return value
