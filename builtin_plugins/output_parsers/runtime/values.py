"""Converts arguments to the types of their tool's JSON schema, from plain text or from JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json, write_json

_TYPES_OF_NUMBERS = {"integer", "number"}
_TYPE_ALIASES = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(
        ("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short"), "integer"
    ),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple"), "array"),
    **dict.fromkeys(("dict", "map"), "object"),
}
"""Non-standard names of JSON types that clients write."""
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_CHOICES = ("anyOf", "oneOf", "allOf")
_WRAPPERS = ("arguments", "parameters", "properties", "input")
"""Keys of wrappers that models put around the arguments."""


def coerce_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments unwrapped and converted to the types of a tool's parameter schema.

    Arguments without a schema stay unchanged.
    """
    known = schema.get("properties")
    if not isinstance(known, Mapping):
        return arguments
    while len(arguments) == 1:
        ((name, value),) = arguments.items()
        inner = _as_object(value) if is_wrapper(name, schema) else None
        if inner is None:
            break
        arguments = inner
    return {
        name: coerce_value(value, argument_schema(name, schema))
        for name, value in arguments.items()
    }


def argument_schema(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of one argument, its `$ref` resolved; None if there is none."""
    known = schema.get("properties")
    return _resolve_ref(known.get(name), schema) if isinstance(known, Mapping) else None


def is_wrapper(name: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a lone argument may be a wrapper around the arguments."""
    known = schema.get("properties")
    return isinstance(known, Mapping) and name in _WRAPPERS and name not in known


def _as_object(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = read_json(value)
        except Broken:
            return None
    return value if isinstance(value, Mapping) else None


def coerce_value(value: Any, schema: Any) -> Any:
    """Return a value converted to its schema, through objects and lists.

    Strings become an allowed type if they can. If only strings are allowed, other values become
    JSON text.
    """
    allowed = schema_types(schema)
    if isinstance(value, str):
        value = typed_value(value, schema) if allowed and "string" not in allowed else value
    elif allowed == {"string"} and value is not None:
        return write_json(value)
    if isinstance(value, Mapping):
        known = keyword_schema(schema, "properties")
        return {name: coerce_value(inner, known.get(name)) for name, inner in value.items()}
    if isinstance(value, list):
        items = keyword_schema(schema, "items")
        return [coerce_value(inner, items) for inner in value]
    return value


def keyword_schema(schema: Any, keyword: str) -> Mapping[str, Any]:
    """Return the mapping that a schema, or the first of its choices, has under a keyword."""
    if not isinstance(schema, Mapping):
        return {}
    lists = (schema[name] for name in _CHOICES if isinstance(schema.get(name), (list, tuple)))
    for choice in [schema, *chain(*lists)]:
        found = choice.get(keyword) if isinstance(choice, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return {}


def typed_arguments(
    texts: Mapping[str, str], schema: Mapping[str, Any], *, literal: bool = True
) -> dict[str, Any]:
    """Return text arguments converted to the types of a tool's parameter schema."""
    return {
        name: typed_value(text, argument_schema(name, schema), literal=literal)
        for name, text in texts.items()
    }


def _resolve_ref(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a schema's `$ref` within the root schema, or the schema itself."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
        return schema
    found: Any = root
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def typed_value(text: str, schema: Any, *, literal: bool = True) -> Any:
    """Return the value of a text as a type that the schema allows, or the text itself.

    Without a schema, and if `literal`, JSON other than a string is parsed; the rest stays text.
    """
    allowed = schema_types(schema)
    if allowed == {"string"} or not (allowed or literal):
        return text
    try:
        value = read_json(text, exact=True)
    except Broken:
        return _lenient_value(text, allowed)
    if (
        not allowed
        or _type_of(value) in allowed
        or (_type_of(value) == "integer" and "number" in allowed)
    ):
        return value
    if allowed & _TYPES_OF_NUMBERS and isinstance(value, float) and value.is_integer():
        return int(value)
    return _lenient_value(text, allowed)


def _lenient_value(text: str, allowed: set[str]) -> Any:
    """Return a value that is not valid JSON: True, None, 007, +1, or doubly escaped JSON."""
    word = text.strip().lower()
    if word in _BOOLEANS and "boolean" in allowed:
        return _BOOLEANS[word]
    if word in ("none", "null") and "null" in allowed:
        return None
    if allowed & _TYPES_OF_NUMBERS and _INTEGER.fullmatch(word):
        return int(word)
    if '\\"' in text and not {"array", "object"}.isdisjoint(allowed):
        try:
            value = read_json(read_json(f'"{text}"'))
        except Broken:
            return text
        return value if _type_of(value) in allowed else text
    return text


def schema_types(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, Mapping):
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        stated = [stated]
    if isinstance(stated, (list, tuple)):
        return {_TYPE_ALIASES.get(name, name) for name in stated if isinstance(name, str)}
    for choice in _CHOICES:
        if isinstance(schema.get(choice), (list, tuple)):
            return set().union(*map(schema_types, schema[choice]))
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
