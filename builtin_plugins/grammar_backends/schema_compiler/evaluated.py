"""What keywords next to `unevaluatedProperties` and `unevaluatedItems` evaluate.

Subschemas that may hold or not (`anyOf`, `oneOf`, `if`, `dependentSchemas`) make separate cases:
under the goal of each, it is certain what is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Protocol

from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import ANYTHING, Goal

_MAX_CASES: Final = 64
_NESTING: Final = frozenset(
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"]
)
PROPERTY_KEYWORDS: Final = frozenset(
    ["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"]
)
ITEM_KEYWORDS: Final = frozenset(
    ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"]
)


class Goals(Protocol):
    """Names the goals of subschemas (`Alternatives`)."""

    document: Document

    def goal(self, schema: Any, holds: bool = True) -> Goal:
        """Return the goal that a schema holds, or that it does not."""


@dataclass(frozen=True, slots=True)
class Case:
    """The schemas that hold for some values, and the goal of these values."""

    goal: Goal = ANYTHING
    parts: tuple[Mapping[str, Any], ...] = ()

    def joined(self, other: Case) -> Case:
        """Return the case in which both apply."""
        return Case(self.goal | other.goal, (*self.parts, *other.parts))


@dataclass(frozen=True, slots=True)
class EvaluatedProperties:
    """Names and patterns that are evaluated; or all properties are."""

    names: dict[str, None]
    patterns: dict[str, None]
    is_closed: bool


@dataclass(frozen=True, slots=True)
class EvaluatedItems:
    """Number of first items that are evaluated, and the schemas of others; or all items are."""

    size: int
    contained: list[Any]
    is_closed: bool


def evaluated_properties(
    known: Goals, schema: Mapping[str, Any]
) -> Iterator[tuple[Goal, EvaluatedProperties]]:
    """Yield the cases of what a schema evaluates."""
    for case in _Cases(known, "unevaluatedProperties", PROPERTY_KEYWORDS, schema).all():
        yield (
            case.goal,
            EvaluatedProperties(
                {name: None for part in case.parts for name in part.get("properties", ())},
                {regex: None for part in case.parts for regex in part.get("patternProperties", ())},
                any(
                    "additionalProperties" in part
                    or (part is not schema and "unevaluatedProperties" in part)
                    for part in case.parts
                ),
            ),
        )


def evaluated_items(
    known: Goals, schema: Mapping[str, Any]
) -> Iterator[tuple[Goal, EvaluatedItems]]:
    """Yield the cases of what a schema evaluates."""
    for case in _Cases(known, "unevaluatedItems", ITEM_KEYWORDS, schema).all():
        listed = [part.get("prefixItems", part.get("items")) for part in case.parts]
        contained = [part["contains"] for part in case.parts if "contains" in part]
        yield (
            case.goal,
            EvaluatedItems(
                max((len(items) for items in listed if isinstance(items, list)), default=0),
                contained if known.document.draft >= 2020 else [],
                any(
                    isinstance(part.get("items"), Mapping | bool)
                    or ("additionalItems" in part and isinstance(part.get("items"), list))
                    or (part is not schema and "unevaluatedItems" in part)
                    for part in case.parts
                ),
            ),
        )


class _Cases:
    """Finds the schemas that hold in place of one schema."""

    def __init__(
        self, known: Goals, keyword: str, relevant: frozenset[str], schema: Mapping[str, Any]
    ) -> None:
        self._known = known
        self._keyword = keyword
        self._relevant = relevant
        self._schema = schema
        self._open: list[Any] = []

    def all(self) -> list[Case]:
        """Return the cases."""
        return self._of(self._schema)

    def _of(self, schema: Any) -> list[Case]:
        """Return the cases of values for which a schema holds."""
        if not isinstance(schema, Mapping) or any(schema is part for part in self._open):
            return [Case()]
        self._open.append(schema)
        document = self._known.document
        found = [Case(parts=(schema,))]
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema:
                target = document.resolve(schema, keyword, schema[keyword])
                found = self._product(found, self._of(target))
        for part in schema.get("allOf", ()):
            found = self._product(found, self._of(part))
        for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            if self._matters(part):
                found = self._product(found, self._either(part, self._of(part), [Case()]))
        if "if" in schema and self._matters({n: schema[n] for n in _IF if n in schema}):
            test = schema["if"]
            both = self._product(self._of(test), self._of(schema.get("then", True)))
            found = self._product(
                found, self._either(test, both, self._of(schema.get("else", True)))
            )
        for name, part in schema.get("dependentSchemas", {}).items():
            if self._matters(part):
                present = document.add({"required": [name]}, schema)
                found = self._product(found, self._either(present, self._of(part), [Case()]))
        self._open.pop()
        return found

    def _either(self, schema: Any, some: list[Case], others: list[Case]) -> list[Case]:
        """Return the cases if a schema holds, and those if it does not."""
        known = self._known
        return [
            *self._product([Case(known.goal(schema))], some),
            *self._product([Case(known.goal(schema, False))], others),
        ]

    def _product(self, some: Iterable[Case], more: Iterable[Case]) -> list[Case]:
        found = [a.joined(b) for a, b in product(some, more)]
        if len(found) > _MAX_CASES:
            path = self._known.document.path(self._schema)
            raise UnsupportedSchemaError(
                self._keyword, "is next to alternatives with too many combinations", path
            )
        return found

    def _matters(self, schema: Any) -> bool:
        """Return whether a subschema may evaluate something."""
        if not isinstance(schema, Mapping):
            return False
        names = {*schema}
        return bool(names & self._relevant or names & _NESTING)


_IF: Final = ("if", "then", "else")
