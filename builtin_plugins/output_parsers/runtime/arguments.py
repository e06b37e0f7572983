"""Arguments of calls in a client's history, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def call_arguments(given: Any) -> dict[str, Any]:
    """Return a call's arguments as an object: what a broken call holds must not end a conversation.

    Nothing is an empty object; a text that is no JSON, or no object, is the value of `arguments`.
    """
    value = given
    for _ in range(2):  # some clients encode the text twice
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value or "{}")
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                break
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {"arguments": value}
