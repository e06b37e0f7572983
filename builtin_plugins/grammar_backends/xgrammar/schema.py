"""Finds in a JSON schema what xgrammar would pass over without a word: outputs must satisfy all
that a schema says.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from core.api import passed_over, schema_parts

_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DAY: Final = "(0[1-9]|1[0-9]|2[0-8])"
_FORMATS: Final[Mapping[str, str]] = {
    "date": f"^[1-9][0-9]{{3}}-((0[1-9]|1[0-2])-{_DAY}|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
}
"""Formats of which xgrammar lets values through that are none: 30 February, 01.02.03.04."""
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
    """Return the first keyword of a schema that outputs would not be held to, with the reason; None
    if there is none.
    """
    for part in schema_parts(schema):
        reason = _unserved_here(part, schema)
        if reason is not None:
            return reason
    return None


def with_patterns(schema: Any) -> Any:
    """Return the schema with a pattern in the place of each bound of a string's length, and of
    loose formats.

    xgrammar 0.2.8 lets such strings have raw control characters, which JSON has not; its patterns
    do not. They also compile in a fraction of the time.
    """
    schema = deepcopy(schema)
    for part in schema_parts(schema):
        if part.get("format") in _FORMATS and "pattern" not in part:
            part["pattern"] = _FORMATS[part.pop("format")]
        least = part.get("minLength", 0)
        most = part.get("maxLength", "")
        if (
            (least or most != "")
            and "string" in part.get("type", ())
            and not {"pattern", "format"} & {*part}
        ):
            for name in {"minLength", "maxLength"} & {*part}:
                del part[name]
            part["pattern"] = rf'^[^\x00-\x1f"\\]{{{least},{most}}}$'
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
        return "minLength and maxLength beside pattern or format"
    if len(part.get("allOf", ())) > 1:
        return "allOf of several schemas"
    if (what := passed_over(part)) is not None:
        return what
    branches = part.get("oneOf")
    if isinstance(branches, list) and not _disjoint(
        [_resolved(branch, whole) for branch in branches]
    ):
        return "oneOf whose branches may hold at once (use anyOf)"
    return None


def _resolved(part: Any, whole: Any) -> Mapping[str, Any]:
    """Follow a local reference, once: enough for what `oneOf` lists."""
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
    """Say whether it is plain that no value satisfies two of the schemas."""
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
    """Say whether a property that both require tells them apart."""
    both = {*a.get("required", ())} & {*b.get("required", ())}
    mine = a.get("properties", {})
    other = b.get("properties", {})
    return any(_values_apart(mine.get(name), other.get(name)) for name in both)
