"""What a request gives to be pooled, read into prompts. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builtin_plugins.routes.pooling.fields import MAX_INPUTS
from core.api import InvalidRequest


def read_inputs(given: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts of a text, a list of texts, token ids, or a list of lists of them."""
    if isinstance(given, str) or (given and all(type(item) is int for item in given)):
        given = [given]
    check_count("input", given)
    for i, item in enumerate(given):
        if not isinstance(item, str) and not (
            isinstance(item, list) and all(type(token) is int for token in item)
        ):
            raise InvalidRequest(
                "input", "must be a text, a list of texts, token ids, or a list of lists of them."
            )
        if not item:
            raise InvalidRequest(f"input[{i}]", "is empty; give a text or token ids.")
    return given


def read_texts(name: str, given: Any) -> list[str]:
    """Return the texts of a text, an object that has one, or a list of these."""
    if not isinstance(given, list):
        return [text_of(name, given)]
    check_count(name, given)
    return [text_of(f"{name}[{i}]", item) for i, item in enumerate(given)]


def text_of(name: str, given: Any) -> str:
    """Return a text: itself, an object's `text`, or the text parts of its `content`."""
    if isinstance(given, str):
        return given
    found = given.get("text", given.get("content")) if isinstance(given, dict) else None
    if isinstance(found, list):
        if any(isinstance(part, dict) and part.get("type", "text") != "text" for part in found):
            raise InvalidRequest(name, "has contents besides text, and this engine reads text.")
        parts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in found]
        found = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(found, str):
        raise InvalidRequest(
            name, "must be a text, or an object with `text` or with text parts as `content`."
        )
    return found


def check_count(name: str, given: Sequence[Any]) -> None:
    """Raise `InvalidRequest` for nothing at all, and for more than one request may hold."""
    if not given:
        raise InvalidRequest(name, "is empty; give at least one text.")
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(
            name, f"holds {len(given)} texts, at most {MAX_INPUTS} are allowed in one request."
        )
