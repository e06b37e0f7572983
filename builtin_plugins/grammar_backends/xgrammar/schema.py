"""JSON schemas and structural tags for xgrammar: rejects keywords that it would ignore."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from builtin_plugins.grammar_backends.json_schema import ignored_keyword, schema_parts
from builtin_plugins.grammar_backends.languages.expressions import And, plain
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError, parse

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
    "unevaluatedItems",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "pattern",
    "format",
    "minLength",
    "maxLength",
)
"""Keywords that xgrammar ignores, or holds for texts without escapes only."""


def unserved(schema: Any) -> str | None:
    """Return the first unsupported keyword of a schema; None if there is none."""
    for part in schema_parts(schema):
        reason = _unserved_here(part, schema)
        if reason is not None:
            return reason
    return None


def unserved_regex(text: str) -> str | None:
    """Return why xgrammar would read a regex differently; None if it would not."""
    try:
        tree = parse(text)
    except RegexError as error:
        return f"the regex, which {error}"
    expr = plain(tree, starts=True, ends=True)
    is_simple = expr is not None and not isinstance(expr, And)
    return None if is_simple else "lookarounds or anchors inside a regex"


def _unserved_here(part: Mapping[str, Any], whole: Any) -> str | None:
    for name in _UNSERVED:
        if name in part:
            return name
    if part.get("uniqueItems"):
        return "uniqueItems"
    if "multipleOf" in part and (part.get("type") != "integer" or {*part} & {"minimum", "maximum"}):
        return "multipleOf, but for integers without a range"
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
