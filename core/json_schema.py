"""Walks through JSON schemas: a grammar backend has to refuse by name what its library would pass over in silence."""

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
    *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"),
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


def unserved_keyword(schema: Any, served: Collection[str] = PLAIN | SCHEMA_ANNOTATIONS) -> str | None:
    """Return a keyword of the schema, or of one in it, that is not among those served; None if there is none."""
    return next((key for part in schema_parts(schema) for key in part if key not in served), None)
