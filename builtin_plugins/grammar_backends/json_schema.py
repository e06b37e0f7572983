"""Finds what of a JSON schema a grammar library would ignore silently.

A grammar backend rejects such a schema by the name of the keyword.
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
"""Keywords that do not constrain a value."""
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
"""Keywords that every grammar library supports."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_OTHERS: Final = (
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
)


def schema_parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        if not isinstance(part, dict):
            continue
        yield part
        for name in _NAMED:
            if isinstance(inner := part.get(name), Mapping):
                pending += inner.values()
        pending += [part[name] for name in _OTHERS if name in part]


def unsupported_keyword(
    schema: Any, supported: Collection[str] = PLAIN | SCHEMA_ANNOTATIONS
) -> str | None:
    """Return the first part of a schema that a library with these keywords
    does not support.

    This is an unknown keyword or the result of `ignored_keyword`; None: everything is
    supported.
    """
    for part in schema_parts(schema):
        unsupported = next((key for key in part if key not in supported), None)
        unsupported = unsupported or ignored_keyword(part)
        if unsupported is not None:
            return unsupported
    return None


def ignored_keyword(part: Mapping[str, Any]) -> str | None:
    """Return what libraries ignore in a schema although they support its
    keywords, or None.

    They follow only references within the schema, and ignore keywords next to a
    reference. They read either one list of alternatives or the keywords next to it.
    They require only what is among the properties.
    """
    stated = {*part} - SCHEMA_ANNOTATIONS
    if "$ref" in part:
        ref = part["$ref"]
        if not (isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))):
            return f"$ref {ref!r:.80}, which is not of the form '#/...'"
        return f"{min(stated)} next to $ref" if stated else None
    for name in sorted({"anyOf", "oneOf", "allOf"} & stated):
        others = stated - {name}
        if others and not (others == {"type"} and _are_of_type(part[name], part["type"])):
            return f"{min(others)} next to {name}"
    required = part.get("required")
    if isinstance(required, list) and not {*required} <= {*part.get("properties", ())}:
        return "required of a property that is not among its properties"
    return None


def _are_of_type(branches: Any, name: Any) -> bool:
    """Return whether each of the schemas has this type itself."""
    if not isinstance(branches, list):
        return False
    return all(isinstance(branch, Mapping) and branch.get("type") == name for branch in branches)
