"""Walks through JSON schemas: a grammar backend has to refuse by name what its library would pass
over in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

SCHEMA_ANNOTATIONS: Final = frozenset(
    [
        "$ref",
        "$defs",
        "definitions",
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)
"""Keywords that hold a value to nothing by themselves."""
PLAIN: Final = frozenset(
    [
        "type",
        "enum",
        "const",
        "anyOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
    ]
)
"""Keywords that every library for constrained outputs knows."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_OTHERS: Final = (
    *("anyOf", "oneOf", "allOf", "prefixItems"),
    *(
        "items",
        "additionalProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "propertyNames",
    ),
)


def schema_parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    open_ = [schema]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        if not isinstance(part, dict):
            continue
        yield part
        for name in _NAMED:
            if isinstance(inner := part.get(name), Mapping):
                open_ += inner.values()
        open_ += [part[name] for name in _OTHERS if name in part]


def unserved_keyword(
    schema: Any, served: Collection[str] = PLAIN | SCHEMA_ANNOTATIONS
) -> str | None:
    """Return what of the schema, or of one in it, a library that knows these keywords does not
    serve.

    That is a keyword that is not among them, or what `passed_over` says; None if it serves
    everything.
    """
    for part in schema_parts(schema):
        unserved = next((key for key in part if key not in served), None) or passed_over(part)
        if unserved is not None:
            return unserved
    return None


def passed_over(part: Mapping[str, Any]) -> str | None:
    """Return what libraries would pass over in a schema although they know its keywords; None if
    there is nothing.

    They follow a reference no further than to the schema's own parts, and read nothing beside it;
    they look at one of several lists of alternatives, or at what stands beside it; and they require
    only what is among the properties.
    """
    stated = {*part} - SCHEMA_ANNOTATIONS
    if "$ref" in part:
        ref = part["$ref"]
        if not (isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))):
            return f"$ref {ref!r:.80}, which is not of the form '#/...'"
        return f"{min(stated)} beside $ref" if stated else None
    for name in sorted({"anyOf", "oneOf", "allOf"} & stated):
        beside = stated - {name}
        if beside and not (beside == {"type"} and _are_of_type(part[name], part["type"])):
            return f"{min(beside)} beside {name}"
    if isinstance(required := part.get("required"), list) and not {*required} <= {
        *part.get("properties", ())
    }:
        return "required of a property that is not among its properties"
    return None


def _are_of_type(branches: Any, name: Any) -> bool:
    """Say whether each of the schemas states this type itself."""
    return isinstance(branches, list) and all(
        isinstance(b, Mapping) and b.get("type") == name for b in branches
    )
