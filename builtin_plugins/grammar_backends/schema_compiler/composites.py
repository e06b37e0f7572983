"""Keywords of arrays and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.evaluated import (
    evaluated_items,
    evaluated_properties,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    ANYTHING,
    NOTHING,
    Arrays,
    Contains,
    Goal,
    Objects,
    PropertySet,
    Strings,
    Witness,
)
from builtin_plugins.grammar_backends.schema_compiler.scalars import count, language, pattern

Clause = list[Any]
"""Alternatives, of which one must hold."""


class KnownSchemas(Protocol):
    """What keywords read of the document's other schemas (`Alternatives`)."""

    document: Document
    is_disjoint: bool

    def goal(self, schema: Any, holds: bool = True) -> Goal:
        """Return the goal that a schema holds, or that it does not."""

    def opposites(self, goal: Goal) -> list[Goal]:
        """Return the goals of which one holds if a goal does not."""

    def of(self, goal: Goal, kind: str) -> list[Any]:
        """Return the facts of which one must hold for values of a type."""

    def narrowed(self, facts: Any, goal: Goal) -> list[Any]:
        """Return the facts of arrays or objects for which a goal holds too."""


class ArrayKeywords:
    """The constraints of one schema on arrays."""

    def __init__(self, schema: Mapping[str, Any], known: KnownSchemas) -> None:
        self._schema = schema
        self._known = known
        self._path = known.document.path(schema)

    def clauses(self) -> Iterator[tuple[Clause, Clause]]:
        """Yield each constraint and its opposite, both as alternatives."""
        first, rest = self._items()
        if first or rest != ANYTHING:
            yield [Arrays(first=first, rest=rest)], self._not_items(first, rest)
        low = count(self._schema, "minItems", self._path)
        high = count(self._schema, "maxItems", self._path)
        if low:
            yield [Arrays(low=low)], [Arrays(high=low - 1)]
        if high is not None:
            yield [Arrays(high=high)], [Arrays(low=high + 1)]
        if "contains" in self._schema and self._known.document.draft >= 6:
            yield self._contains()
        if self._schema.get("uniqueItems") is True:
            yield [Arrays(is_unique=True)], [self._not_unique]
        if "unevaluatedItems" in self._schema and self._known.document.draft >= 2019:
            yield self._unevaluated()

    @property
    def _not_unique(self) -> Any:
        return UnsupportedSchemaError("uniqueItems", "cannot be negated", self._path)

    def _items(self) -> tuple[tuple[Goal, ...], Goal]:
        schema = self._schema
        goal = self._known.goal
        listed = schema.get("prefixItems") if self._known.document.draft >= 2020 else None
        rest = schema.get("items", True)
        if isinstance(rest, list):
            listed = rest
            rest = schema.get("additionalItems", True)
        if listed is not None and not isinstance(listed, list):
            raise UnsupportedSchemaError("prefixItems", "must be a list", self._path)
        return tuple(goal(item) for item in listed or ()), goal(rest)

    def _not_items(self, first: tuple[Goal, ...], rest: Goal) -> Clause:
        found: Clause = []
        for index, item in enumerate(first):
            for other in self._known.opposites(item):
                found.append(Arrays(first=(*[ANYTHING] * index, other), low=index + 1))
        for other in self._known.opposites(rest):
            # Items of the first part are not looked at.
            witness = Contains(other, 1, None)
            if first:
                found.append(
                    UnsupportedSchemaError("items", "after others cannot be negated", self._path)
                )
            else:
                found.append(Arrays(contains=(witness,)))
        return found

    def _contains(self) -> tuple[Clause, Clause]:
        goal = self._known.goal(self._schema["contains"])
        low = None
        high = None
        if self._known.document.draft >= 2019:
            low = count(self._schema, "minContains", self._path)
            high = count(self._schema, "maxContains", self._path)
        low = 1 if low is None else low
        if high is not None and high < low:
            return [], [Arrays()]
        opposites: Clause = []
        if low:
            opposites.append(Arrays(contains=(Contains(goal, 0, low - 1),)))
        if high is not None:
            opposites.append(Arrays(contains=(Contains(goal, high + 1, None),)))
        return [Arrays(contains=(Contains(goal, low, high),))], opposites

    def _unevaluated(self) -> tuple[Clause, Clause]:
        known = self._known
        stated = self._schema["unevaluatedItems"]
        some: Clause = []
        opposites: Clause = []
        for goal, evaluated in evaluated_items(known, self._schema):
            if evaluated.is_closed:
                some += known.narrowed(Arrays(), goal)
                continue
            prefix = (ANYTHING,) * evaluated.size
            rest = known.goal(stated)
            if evaluated.contained:
                schema = {"anyOf": [*evaluated.contained, stated]}
                rest = known.goal(known.document.add(schema, self._schema))
            some += known.narrowed(Arrays(first=prefix, rest=rest), goal)
            for facts in self._not_items(prefix, rest):
                if isinstance(facts, UnsupportedSchemaError):
                    opposites.append(facts)
                else:
                    opposites += known.narrowed(facts, goal)
        return some, opposites


class ObjectKeywords:
    """The constraints of one schema on objects."""

    def __init__(self, schema: Mapping[str, Any], known: KnownSchemas) -> None:
        self._schema = schema
        self._known = known
        self._path = known.document.path(schema)

    def clauses(self) -> Iterator[tuple[Clause, Clause]]:
        """Yield each constraint and its opposite, both as alternatives."""
        schema = self._schema
        known = self._known
        if {"properties", "patternProperties", "additionalProperties"} & {*schema}:
            yield self._properties()
        required = schema.get("required", ())
        if isinstance(required, list):
            for name in required:
                if not isinstance(name, str):
                    raise UnsupportedSchemaError("required", "must hold names", self._path)
                yield [Objects(required={name: None})], [without(name)]
        low = count(schema, "minProperties", self._path)
        high = count(schema, "maxProperties", self._path)
        if low:
            yield [Objects(low=low)], [Objects(high=low - 1)]
        if high is not None:
            yield [Objects(high=high)], [Objects(low=high + 1)]
        if "propertyNames" in schema and known.document.draft >= 6:
            goal = known.goal(schema["propertyNames"])
            yield (
                [Objects(names=(goal,))] if goal else [Objects()],
                [
                    Objects(witnesses=(Witness(names, ANYTHING),))
                    for other in known.opposites(goal)
                    for names in known.of(other, "string")
                ],
            )
        yield from self._dependencies()
        if "unevaluatedProperties" in schema and known.document.draft >= 2019:
            yield self._unevaluated()

    def _properties(self) -> tuple[Clause, Clause]:
        schema = self._schema
        goal = self._known.goal
        named = schema.get("properties", {})
        patterned = schema.get("patternProperties", {})
        if not isinstance(named, Mapping):
            raise UnsupportedSchemaError("properties", "must be an object", self._path)
        if not isinstance(patterned, Mapping):
            raise UnsupportedSchemaError("patternProperties", "must be an object", self._path)
        found = PropertySet(
            {name: goal(value) for name, value in named.items()},
            tuple(
                (pattern(regex, "patternProperties", self._path), goal(value))
                for regex, value in patterned.items()
            ),
            goal(schema.get("additionalProperties", True)),
            is_explicit="additionalProperties" in schema,
            is_naming="properties" in schema or "patternProperties" in schema,
        )
        return [Objects(sets=(found,))], self._not_properties(found)

    def _not_properties(self, found: PropertySet) -> Clause:
        """Return the ways in which a property does not fit."""
        known = self._known
        rest = Strings(
            outside=tuple(regex for regex, _ in found.patterns), others=frozenset(found.names)
        )
        opposites: Clause = []
        before: dict[str, Goal] = {}
        for name, goal in found.names.items():
            opposites += [
                Objects(sets=(silent({**before, name: other}),), required={name: None})
                for other in known.opposites(goal)
            ]
            if known.is_disjoint:
                before[name] = goal
        opposites += [
            Objects(witnesses=(Witness(Strings(within=(regex,)), other),))
            for regex, goal in found.patterns
            for other in known.opposites(goal)
        ]
        opposites += [
            Objects(witnesses=(Witness(rest, other),))
            for other in known.opposites(found.additional)
        ]
        return opposites

    def _dependencies(self) -> Iterator[tuple[Clause, Clause]]:
        draft = self._known.document.draft
        keywords = (["dependentRequired", "dependentSchemas"] if draft >= 2019 else []) + [
            "dependencies"
        ]
        for keyword in keywords:
            named = self._schema.get(keyword, {})
            if not isinstance(named, Mapping):
                raise UnsupportedSchemaError(keyword, "must be an object", self._path)
            for name, value in named.items():
                with_it = Objects(required={name: None})
                if isinstance(value, list):
                    for other in value:
                        both = Objects(required={name: None, other: None})
                        absent = Objects(sets=(silent({other: NOTHING}),), required={name: None})
                        yield [without(name), both], [absent]
                    continue
                goal = self._known.goal(value)
                yield (
                    [without(name), *self._known.narrowed(with_it, goal)],
                    [
                        facts
                        for other in self._known.opposites(goal)
                        for facts in self._known.narrowed(with_it, other)
                    ],
                )

    def _unevaluated(self) -> tuple[Clause, Clause]:
        known = self._known
        some: Clause = []
        opposites: Clause = []
        for goal, evaluated in evaluated_properties(known, self._schema):
            if evaluated.is_closed:
                some += known.narrowed(Objects(), goal)
                continue
            found = PropertySet(
                dict.fromkeys(evaluated.names, ANYTHING),
                tuple((language(regex), ANYTHING) for regex in evaluated.patterns),
                known.goal(self._schema["unevaluatedProperties"]),
            )
            some += known.narrowed(Objects(sets=(found,)), goal)
            for facts in self._not_properties(found):
                opposites += known.narrowed(facts, goal)
        return some, opposites


def silent(names: Mapping[str, Goal]) -> PropertySet:
    """Return schemas of some properties that say nothing of which others are expected."""
    return PropertySet(names, is_explicit=False, is_naming=False)


def without(name: str) -> Objects:
    """Return the objects that lack a property."""
    return Objects(sets=(silent({name: NOTHING}),))
