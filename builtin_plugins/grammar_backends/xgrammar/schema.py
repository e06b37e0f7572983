"""JSON schemas and structural tags for xgrammar: rejects keywords that it would ignore."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from builtin_plugins.grammar_backends.json_schema import ignored_keyword, schema_parts

_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DAY: Final = "(0[1-9]|1[0-9]|2[0-8])"
_FORMATS: Final[Mapping[str, str]] = {
    "date": f"^[1-9][0-9]{{3}}-((0[1-9]|1[0-2])-{_DAY}"
    "|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
}
"""Patterns of formats for which xgrammar allows invalid values: 30 February, 01.02.03.04."""
_UNSERVED: Final = (
    "not",
    "if",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "contains",
    "minContains",
    "maxContains",
    "$dynamicRef",
    "$recursiveRef",
)


def unserved(schema: Any) -> str | None:
    """Return the first unsupported keyword of a schema; None if there is none."""
    for part in schema_parts(schema):
        reason = _unserved_here(part, schema)
        if reason is not None:
            return reason
    return None


def with_patterns(schema: Any) -> Any:
    """Return the schema with patterns instead of string length bounds and loose formats.

    xgrammar 0.2.8 allows raw control characters in such strings, which JSON forbids, but not in
    patterns. Patterns also compile much faster.
    """
    schema = deepcopy(schema)
    for part in schema_parts(schema):
        if part.get("format") in _FORMATS and "pattern" not in part:
            part["pattern"] = _FORMATS[part.pop("format")]
        low = part.get("minLength", 0)
        high = part.get("maxLength", "")
        if (
            (low or high != "")
            and "string" in part.get("type", ())
            and not {"pattern", "format"} & {*part}
        ):
            for name in {"minLength", "maxLength"} & {*part}:
                del part[name]
            part["pattern"] = rf'^[^\x00-\x1f"\\]{{{low},{high}}}$'
    return schema


def _unserved_here(part: Mapping[str, Any], whole: Any) -> str | None:
    for name in _UNSERVED:
        if name in part:
            return name
    if part.get("uniqueItems"):
        return "uniqueItems"
    if "multipleOf" in part and (part.get("type") != "integer" or {*part} & {"minimum", "maximum"}):
        return "multipleOf, but for integers without a range"
    if {"pattern", "format"} & {*part} and {"minLength", "maxLength"} & {*part}:
        return "minLength and maxLength together with pattern or format"
    if len(part.get("allOf", ())) > 1:
        return "allOf of several schemas"
    if (what := ignored_keyword(part)) is not None:
        return what
    branches = part.get("oneOf")
    if isinstance(branches, list) and not _disjoint(
        [_resolved(branch, whole) for branch in branches]
    ):
        return "oneOf with overlapping branches (use anyOf)"
    return None


def _resolved(part: Any, whole: Any) -> Mapping[str, Any]:
    """Resolve a local reference, once: enough for the branches of `oneOf`."""
    if (
        isinstance(part, Mapping)
        and isinstance(path := part.get("$ref"), str)
        and path.startswith("#/")
    ):
        for name in path[2:].split("/"):
            whole = whole.get(name) if isinstance(whole, Mapping) else None
        part = whole
    return part if isinstance(part, Mapping) else {}


def _disjoint(branches: list[Mapping[str, Any]]) -> bool:
    """Return whether no value can satisfy two of the schemas."""
    pairs = [(a, b) for i, a in enumerate(branches) for b in branches[i + 1 :]]
    return all(
        _values_apart(a, b) or _types_apart(a, b) or _properties_apart(a, b) for a, b in pairs
    )


def _types_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    types = [
        {part["type"]} if isinstance(part.get("type"), str) else {*part.get("type", ())}
        for part in (a, b)
    ]
    types = [{"number" if name == "integer" else name for name in names} for names in types]
    return all(types) and types[0].isdisjoint(types[1])


def _values_apart(a: Any, b: Any) -> bool:
    values = [_values(part) for part in (a, b)]
    return all(values) and not any(value in values[1] for value in values[0])


def _values(part: Any) -> list[Any]:
    if not isinstance(part, Mapping):
        return []
    return [part["const"]] if "const" in part else list(part.get("enum", ()))


def _properties_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether a property that both require has disjoint values."""
    both = {*a.get("required", ())} & {*b.get("required", ())}
    mine = a.get("properties", {})
    other = b.get("properties", {})
    return any(_values_apart(mine.get(name), other.get(name)) for name in both)


SchemaToGrammar = Callable[[Any], str]


def structural_tag(text: str, to_grammar: SchemaToGrammar) -> str:
    """Return a tag with each JSON schema replaced by the grammar that `to_grammar` returns.

    Schemas in a family's own style instead of JSON stay unchanged.
    """
    tag = _current(json.loads(text))
    for part in _schemas(tag):
        if part.get("style", "json") == "json" and not {*part} - {"type", "json_schema", "style"}:
            grammar = to_grammar(part.pop("json_schema"))
            part.update(type="grammar", grammar=grammar)
            part.pop("style", None)
    return json.dumps(tag)


def unserved_in_tag(text: str) -> str | None:
    """Return the first unsupported part of a tag; None if there is none."""
    tag = _current(json.loads(text))
    for part in _parts(tag):
        if part.get("type") == "token" and not isinstance(part.get("token"), int):
            return "a token by its text (give its id)"
    return next(
        (what for part in _schemas(tag) if (what := unserved(part["json_schema"])) is not None),
        None,
    )


def token_ids(text: str) -> set[int]:
    """Return the token ids in a tag."""
    return {part["token"] for part in _parts(json.loads(text)) if part.get("type") == "token"}


def _schemas(tag: Any) -> Iterator[dict[str, Any]]:
    return (
        part for part in _parts(tag) if part.get("type") == "json_schema" and "json_schema" in part
    )


def _parts(tag: Any) -> Iterator[dict[str, Any]]:
    """Yield the formats in a tag, without those inside schemas."""
    open_ = [tag]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            open_ += [inner for key, inner in part.items() if key != "json_schema"]
            yield part


def _current(tag: Any) -> Any:
    """Return a tag in the current form; the former one lists `structures` and `triggers`."""
    if "structures" not in tag:
        return tag
    tags = [
        {
            "begin": item["begin"],
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item["end"],
        }
        for item in tag["structures"]
    ]
    found = {"type": "triggered_tags", "triggers": tag.get("triggers", []), "tags": tags}
    return {"type": "structural_tag", "format": found}
