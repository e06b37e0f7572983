"""What keywords next to `unevaluatedProperties` and `unevaluatedItems` evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    UnsupportedSchemaError,
)

_NESTING: Final = frozenset(
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"]
)
_PROPERTY_KEYWORDS: Final = frozenset(
    ["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"]
)
_ITEM_KEYWORDS: Final = frozenset(
    ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"]
)


def evaluated_properties(
    document: Document, schema: Mapping[str, Any]
) -> tuple[dict[str, None], dict[str, None], bool]:
    """Return the names and patterns that a schema evaluates, and whether it does all."""
    names: dict[str, None] = {}
    patterns: dict[str, None] = {}
    is_closed = False
    for part in _in_place(document, schema, "unevaluatedProperties", _PROPERTY_KEYWORDS):
        names.update(dict.fromkeys(part.get("properties", ())))
        patterns.update(dict.fromkeys(part.get("patternProperties", ())))
        is_closed |= "additionalProperties" in part
        is_closed |= part is not schema and "unevaluatedProperties" in part
    return names, patterns, is_closed


def evaluated_items(document: Document, schema: Mapping[str, Any]) -> tuple[int, bool]:
    """Return how many first items a schema evaluates, and whether it does all."""
    size = 0
    is_closed = False
    for part in _in_place(document, schema, "unevaluatedItems", _ITEM_KEYWORDS):
        listed = part.get("prefixItems", part.get("items"))
        size = max(size, len(listed) if isinstance(listed, list) else 0)
        is_closed |= isinstance(part.get("items"), Mapping | bool)
        is_closed |= "additionalItems" in part and isinstance(part.get("items"), list)
        is_closed |= part is not schema and "unevaluatedItems" in part
        if "contains" in part and document.draft >= 2020:
            raise UnsupportedSchemaError(
                "unevaluatedItems", "next to contains", document.path(schema)
            )
    return size, is_closed


def _in_place(
    document: Document, schema: Mapping[str, Any], keyword: str, relevant: frozenset[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those that surely hold with it."""
    pending = [schema]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        pending += part.get("allOf", ())
        for ref in ("$ref", "$dynamicRef"):
            if ref in part:
                pending.append(document.resolve(part, ref, part[ref]))
        unsure = [*part.get("anyOf", ()), *part.get("oneOf", ())]
        unsure += [part[name] for name in ("if", "then", "else") if name in part]
        unsure += [*part.get("dependentSchemas", {}).values()]
        if any(_mentions(inner, relevant) for inner in unsure):
            raise UnsupportedSchemaError(
                keyword, "next to alternatives is not supported", document.path(schema)
            )


def _mentions(schema: Any, relevant: frozenset[str]) -> bool:
    if not isinstance(schema, Mapping):
        return False
    names = {*schema}
    return bool(names & relevant or names & _NESTING)
