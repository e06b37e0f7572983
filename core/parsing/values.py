"""Arguments that a format writes as plain text get the types their tool's schema states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.parsing.json_text import Broken, read_json

_TYPES_OF_NUMBERS = {"integer", "number"}


def typed_arguments(texts: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the types that the JSON schema of a tool's parameters states for them."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return {name: typed_value(text, known.get(name)) for name, text in texts.items()}


def typed_value(text: str, schema: Any) -> Any:
    """Return the value a text stands for: of a type that the schema allows, or else the text itself.

    Without a schema, what reads as JSON other than a string is that, and everything else is text.
    """
    allowed = _types(schema)
    if allowed == {"string"}:
        return text
    try:
        value = read_json(text)
    except Broken:
        return _spelled(text, allowed)
    if not allowed or _type_of(value) in allowed or (_type_of(value) == "integer" and "number" in allowed):
        return value
    if allowed & _TYPES_OF_NUMBERS and isinstance(value, float) and value.is_integer():
        return int(value)
    return text


def _spelled(text: str, allowed: set[str]) -> Any:
    """Return what no JSON says: Python's words for true, false and nothing, where the schema has them."""
    word = text.strip().lower()
    if word in ("true", "false") and "boolean" in allowed:
        return word == "true"
    if word in ("none", "null") and "null" in allowed:
        return None
    return text


def _types(schema: Any) -> set[str]:
    """Return the JSON types a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, (list, tuple)):
        return {name for name in stated if isinstance(name, str)}
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), (list, tuple)):
            return set().union(*map(_types, schema[choice]))
    if isinstance(schema.get("enum"), (list, tuple)):
        return {_type_of(value) for value in schema["enum"]}
    return set()


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
