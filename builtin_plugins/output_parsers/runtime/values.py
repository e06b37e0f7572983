"""Arguments get the types their tool's schema states, whether a format writes them as plain text or
as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json, write_json

_TYPES_OF_NUMBERS = {"integer", "number"}
_OTHER_NAMES = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(
        ("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short"), "integer"
    ),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple"), "array"),
    **dict.fromkeys(("dict", "map"), "object"),
}
"""What clients write for JSON's types, though no standard has it."""
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_CHOICES = ("anyOf", "oneOf", "allOf")
_WRAPPERS = ("arguments", "parameters", "properties", "input")
"""What models write around arguments that have no such property."""


def fitting_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments as the JSON schema of a tool's parameters has them: unwrapped, and texts of
    the types it states.

    Only what it says is changed: without a word on an argument, that stays what it is.
    """
    known = schema.get("properties")
    if not isinstance(known, Mapping):
        return arguments
    while len(arguments) == 1:
        ((name, value),) = arguments.items()
        inner = _object_in(value) if is_wrapper(name, schema) else None
        if inner is None:
            break
        arguments = inner
    return {
        name: fitting_value(value, argument_schema(name, schema))
        for name, value in arguments.items()
    }


def argument_schema(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of an argument in that of all arguments, or what it refers to there; None
    if none is stated.
    """
    known = schema.get("properties")
    return _referred(known.get(name), schema) if isinstance(known, Mapping) else None


def is_wrapper(name: str, schema: Mapping[str, Any]) -> bool:
    """Say whether an argument, if it is the only one, may be a wrapper around the arguments."""
    known = schema.get("properties")
    return isinstance(known, Mapping) and name in _WRAPPERS and name not in known


def _object_in(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = read_json(value)
        except Broken:
            return None
    return value if isinstance(value, Mapping) else None


def fitting_value(value: Any, schema: Any) -> Any:
    """Return a value in which texts, where the schema allows none, are what it does allow; as they
    are if they can't.

    Where it allows nothing but texts, other values are their JSON.
    """
    allowed = schema_types(schema)
    if isinstance(value, str):
        value = typed_value(value, schema) if allowed and "string" not in allowed else value
    elif allowed == {"string"} and value is not None:
        return write_json(value)
    if isinstance(value, Mapping):
        known = stated(schema, "properties")
        return {name: fitting_value(inner, known.get(name)) for name, inner in value.items()}
    if isinstance(value, list):
        items = stated(schema, "items")
        return [fitting_value(inner, items) for inner in value]
    return value


def stated(schema: Any, keyword: str) -> Mapping[str, Any]:
    """Return what a schema, or the first of its choices that does, states under a keyword; empty if
    none does.
    """
    if not isinstance(schema, Mapping):
        return {}
    lists = (schema[name] for name in _CHOICES if isinstance(schema.get(name), (list, tuple)))
    stating = (
        choice.get(keyword) for choice in [schema, *chain(*lists)] if isinstance(choice, Mapping)
    )
    return next((stated for stated in stating if isinstance(stated, Mapping)), {})


def typed_arguments(
    texts: Mapping[str, str], schema: Mapping[str, Any], *, literal: bool = True
) -> dict[str, Any]:
    """Return arguments with the types that the JSON schema of a tool's parameters states for them."""
    return {
        name: typed_value(text, argument_schema(name, schema), literal=literal)
        for name, text in texts.items()
    }


def _referred(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return what an argument's schema refers to in that of all arguments, or else the schema
    itself.
    """
    if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
        return schema
    found: Any = root
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def typed_value(text: str, schema: Any, *, literal: bool = True) -> Any:
    """Return the value a text stands for: of a type that the schema allows, or else the text
    itself.

    Where the schema says nothing, what reads as JSON other than a string is that, if `literal`; all
    else is text.
    """
    allowed = schema_types(schema)
    if allowed == {"string"} or not (allowed or literal):
        return text
    try:
        value = read_json(text, exact=True)
    except Broken:
        return _spelled(text, allowed)
    if (
        not allowed
        or _type_of(value) in allowed
        or (_type_of(value) == "integer" and "number" in allowed)
    ):
        return value
    if allowed & _TYPES_OF_NUMBERS and isinstance(value, float) and value.is_integer():
        return int(value)
    return _spelled(text, allowed)


def _spelled(text: str, allowed: set[str]) -> Any:
    """Return what JSON says otherwise: words for true, false and nothing, numbers that begin with 0
    or +, escapes twice.
    """
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
    """Return the JSON types a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        stated = [stated]
    if isinstance(stated, (list, tuple)):
        return {_OTHER_NAMES.get(name, name) for name in stated if isinstance(name, str)}
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
