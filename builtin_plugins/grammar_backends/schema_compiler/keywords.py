"""The constraint of each keyword of a schema on values of one type, and its opposite.

Both are alternatives of facts. They are made when they are iterated: only one of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from builtin_plugins.grammar_backends.languages.decimals import INTEGER, exact, one_of, others
from builtin_plugins.grammar_backends.schema_compiler.composites import (
    ArrayKeywords,
    KnownSchemas,
    ObjectKeywords,
)
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    Arrays,
    Goal,
    Numbers,
    Objects,
    Strings,
    Values,
)
from builtin_plugins.grammar_backends.schema_compiler.scalars import (
    is_number,
    numbers,
    opposite,
    strings,
)

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
EVERY: Final[Mapping[str, Any]] = {
    "null": Values(frozenset((None,))),
    "boolean": Values(frozenset((True, False))),
    "number": Numbers(),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}
"""The facts of all values of a type."""
_COMBINING: Final = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
)


class KnownAlternatives(KnownSchemas, Protocol):
    """What keywords that combine schemas read of the others (`Alternatives`)."""

    def negation(self, goal: Goal) -> Goal:
        """Return the opposite of a single schema's goal."""

    def merged(self, some: Iterable[Any], more: Iterable[Any]) -> list[Any]:
        """Return the alternatives of values for which one of each list holds."""

    def exactly_one(self, goals: list[Goal], kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which one goal holds and no other does."""

    def not_exactly_one(self, goals: list[Goal], kind: str) -> list[Any]:
        """Return the facts of values for which no goal holds, or two do."""


class Lazy:
    """Alternatives that are made when they are iterated."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


class SchemaKeywords:
    """The keywords of one document's schemas."""

    def __init__(self, known: KnownAlternatives) -> None:
        self._known = known

    def clauses(self, schema: Mapping[str, Any], kind: str) -> Iterator[tuple[Any, Any]]:
        """Yield each constraint of a schema on values of a type, and its opposite.

        In the order of the keywords, since properties are written in that order.
        """
        document = self._known.document
        if "$ref" in schema and document.draft <= 7:
            yield self._of_schema(document.resolve(schema, "$ref", schema["$ref"]), kind)
            return  # its siblings are ignored
        seen_kind = False
        for keyword in schema:
            if keyword in _COMBINING:
                yield from self._combined(schema, keyword, kind)
            elif keyword in ("type", "enum", "const"):
                yield from self._of_scalars(schema, keyword, kind)
            elif not seen_kind and (keyword == "properties" or "properties" not in schema):
                seen_kind = True
                yield from self._of_kind(schema, kind)

    def _of_scalars(
        self, schema: Mapping[str, Any], keyword: str, kind: str
    ) -> Iterator[tuple[Any, Any]]:
        if keyword == "type":
            yield self._of_type(schema, kind)
        elif keyword == "enum":
            if not isinstance(schema["enum"], list):
                raise UnsupportedSchemaError(
                    "enum", "must be a list", self._known.document.path(schema)
                )
            yield self._of_values(schema, schema["enum"], kind)
        elif self._known.document.draft >= 6:
            yield self._of_values(schema, [schema["const"]], kind)

    def _of_kind(self, schema: Mapping[str, Any], kind: str) -> Iterator[tuple[Any, Any]]:
        path = self._known.document.path(schema)
        if kind == "number":
            for facts in numbers(schema, self._known.document.draft, path):
                other = opposite(facts)
                yield [facts], [] if other is None else [other]
        elif kind == "string":
            some, negative = strings(schema, path)
            positive = [EVERY[kind]]
            for strings_facts in some:
                positive = self._known.merged(positive, [strings_facts])
            yield positive, negative
        elif kind == "array":
            yield from ArrayKeywords(schema, self._known).clauses()
        elif kind == "object":
            yield from ObjectKeywords(schema, self._known).clauses()

    def _of_schema(self, schema: Any, kind: str) -> tuple[Any, Any]:
        known = self._known
        return (
            self._any((known.goal(schema),), kind),
            self._any((known.goal(schema, False),), kind),
        )

    def _any(self, goals: Sequence[Goal], kind: str) -> Lazy:
        """Return the facts of values for which one of the goals holds."""
        return Lazy(lambda: [facts for goal in goals for facts in self._known.of(goal, kind)])

    def _of_type(self, schema: Mapping[str, Any], kind: str) -> tuple[Any, Any]:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in names:
            if name not in (*TYPES, "integer"):
                raise UnsupportedSchemaError(
                    "type", f"{name!r:.60} is unknown", self._known.document.path(schema)
                )
        if kind in names:
            return [EVERY[kind]], []
        if kind == "number" and "integer" in names:
            return [Numbers(INTEGER)], [Numbers(others(INTEGER))]
        return [], [EVERY[kind]]

    def _of_values(
        self, schema: Mapping[str, Any], values: list[Any], kind: str
    ) -> tuple[Any, Any]:
        """Return the facts of a list of values."""
        mine = [value for value in values if kind_of(value) == kind]
        if kind in ("null", "boolean"):
            fits = frozenset(mine)
            rest = EVERY[kind].values - fits
            return [Values(fits)] if fits else [], [Values(rest)] if rest else []
        if kind == "string":
            texts = frozenset(mine)
            return [Strings(texts=texts)] if texts else [], [Strings(others=texts)]
        if kind == "number":
            if not mine:
                return [], [Numbers()]
            dfa = one_of([exact(value) for value in mine])
            if dfa is None:
                raise UnsupportedSchemaError(
                    "enum", "has a number of over 400 digits", self._known.document.path(schema)
                )
            return [Numbers(dfa)], [Numbers(others(dfa))]
        goals = [self._known.goal(self._schema_of(value, schema)) for value in mine]
        return (
            [facts for goal in goals for facts in self._known.of(goal, kind)],
            self._any((frozenset((n, False) for goal in goals for n, _ in goal),), kind),
        )

    def _schema_of(self, value: Any, near: Any) -> Any:
        """Return a schema of one array or object."""
        if isinstance(value, list):
            found: dict[str, Any] = {
                "type": "array",
                "prefixItems" if self._known.document.draft >= 2020 else "items": [
                    self._known.document.add({"enum": [item]}, near) for item in value
                ],
                "minItems": len(value),
                "maxItems": len(value),
            }
        else:
            found = {
                "type": "object",
                "properties": {
                    name: self._known.document.add({"enum": [item]}, near)
                    for name, item in value.items()
                },
                "required": [*value],
                "additionalProperties": False,
            }
        return self._known.document.add(found, near)

    def _combined(
        self, schema: Mapping[str, Any], keyword: str, kind: str
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the constraints of a keyword that combines schemas."""
        value = schema[keyword]
        path = self._known.document.path(schema)
        if keyword in ("allOf", "anyOf", "oneOf") and not isinstance(value, list):
            raise UnsupportedSchemaError(keyword, "must be a list", path)
        if keyword == "$ref" or (keyword == "$dynamicRef" and self._known.document.draft >= 2020):
            yield self._of_schema(self._known.document.resolve(schema, keyword, value), kind)
        elif keyword == "$recursiveRef" and self._known.document.draft == 2019:
            raise UnsupportedSchemaError(keyword, "is not supported", path)
        elif keyword == "allOf":
            for part in value:
                yield self._of_schema(part, kind)
        elif keyword == "anyOf":
            goals = [self._known.goal(part) for part in value]
            none: Goal = frozenset().union(*map(self._known.negation, goals))
            yield self._any(goals, kind), self._any((none,), kind)
        elif keyword == "oneOf":
            goals = [self._known.goal(part) for part in value]
            yield (
                Lazy(lambda: self._known.exactly_one(goals, kind, self._siblings(schema, kind))),
                Lazy(lambda: self._known.not_exactly_one(goals, kind)),
            )
        elif keyword == "not":
            positive, negative = self._of_schema(value, kind)
            yield negative, positive
        elif keyword == "if" and self._known.document.draft >= 7 and {"then", "else"} & {*schema}:
            goal = self._known.goal
            test = goal(value)
            not_test = goal(value, False)
            then = schema.get("then", True)
            other = schema.get("else", True)
            fits = [test | goal(then), not_test | goal(other)]
            fails = [test | goal(then, False), not_test | goal(other, False)]
            yield self._any(fits, kind), self._any(fails, kind)

    def _siblings(self, schema: Mapping[str, Any], kind: str) -> Any:
        """Return facts that hold by other keywords of a schema."""
        found = [EVERY[kind]]
        plain = {name: part for name, part in schema.items() if name not in _COMBINING}
        for positive, _ in self.clauses(self._known.document.add(plain, schema), kind):
            some = [*positive]
            if len(some) == 1:
                found = self._known.merged(found, some) or found
        return found[0]


def kind_of(value: Any) -> str:
    """Return the type of a JSON value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if is_number(value):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
