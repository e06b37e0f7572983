"""Objects as they are written: named properties in order, then others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from builtin_plugins.grammar_backends.schema_compiler.alternatives import Alternatives
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    ANYTHING,
    NEVER,
    NOTHING,
    Goal,
    Language,
    Objects,
    PropertySet,
    Strings,
    Witness,
)

_MAX_KEY_CLASSES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A property of a given name."""

    name: str
    goal: Goal
    is_required: bool


@dataclass(frozen=True, slots=True, eq=False)
class Other:
    """Properties with names in a language."""

    names: Strings
    goal: Goal


@dataclass(frozen=True, slots=True, eq=False)
class ObjectShape:
    """One way to write an object."""

    named: tuple[Named, ...]
    others: tuple[Other, ...]
    low: int
    high: int | None
    last: tuple[Other, ...] = ()
    """If not empty: the object ends with such a property. So an equal name before it, which JSON
    readers forget, cannot hide it."""


class Shapes:
    """Derives the shapes of objects."""

    def __init__(self, known: Alternatives, *, closes: bool) -> None:
        """`closes`: objects have only the properties that their schemas name or describe."""
        self._known = known
        self._closes = closes

    def of(self, facts: Objects) -> Iterator[ObjectShape]:
        """Yield the shapes of objects; together they are exact."""
        witnesses = self._needed(facts)
        if not witnesses:
            yield self._shape(facts, None)
            return
        witness = witnesses[0]
        rest = tuple(witnesses[1:])
        for name in _names_of(facts):
            if witness.names.fits(name) and NEVER not in _goal_of(facts, name):
                found = PropertySet({name: witness.goal}, is_explicit=False)
                yield from self.of(
                    replace(
                        facts,
                        sets=(*facts.sets, found),
                        required={**facts.required, name: None},
                        witnesses=rest,
                    )
                )
        shape = self._shape(facts, witness)
        if shape.last and rest:
            raise UnsupportedSchemaError(
                "additionalProperties", "must fail for several properties at once"
            )
        if shape.last:
            yield shape

    def _needed(self, facts: Objects) -> list[Witness]:
        """Return the witnesses of an object without those that are there in any case."""
        if len(facts.witnesses) < 2 and not facts.required:
            return [*facts.witnesses]
        found: list[Witness] = []
        pending = [
            replace(part, goal=ANYTHING) if self._is_any(facts, part) else part
            for part in facts.witnesses
            if not any(
                part.names.fits(name) and self._known.implies(_goal_of(facts, name), part.goal)
                for name in facts.required
            )
        ]
        while pending:
            part = pending.pop(0)
            if not any(
                part.goal <= other.goal and other.names.surely_within(part.names)
                for other in (*found, *pending)
            ):
                found.append(part)
        return found

    def _is_any(self, facts: Objects, witness: Witness) -> bool:
        """Return whether each property with a fitting name is a witness."""
        implies = self._known.implies
        names = _names_of(facts)
        return all(
            implies(_goal_of(facts, name), witness.goal)
            for name in names
            if witness.names.fits(name)
        ) and all(
            implies(goal, witness.goal)
            for keys, goal, _ in self._others(facts, frozenset(names))
            if (both := keys.merge(witness.names)) is not None and not both.is_empty()
        )

    def _shape(self, facts: Objects, witness: Witness | None) -> ObjectShape:
        names = _names_of(facts)
        named = []
        for name in names:
            goal = _goal_of(facts, name)
            if not all(self._fits(name, names_goal) for names_goal in facts.names):
                goal = NOTHING
            if NEVER not in goal or name in facts.required:
                named.append(Named(name, goal, name in facts.required))
        classes = [*self._others(facts, frozenset(names))]
        others = tuple(Other(keys, goal) for keys, goal, is_open in classes if is_open)
        last = []
        if witness is not None:
            for keys, goal, _ in classes:
                both = keys.merge(witness.names)
                if both is not None and not both.is_empty():
                    last.append(Other(both, goal | witness.goal))
        return ObjectShape(tuple(named), others, facts.low, facts.high, tuple(last))

    def _fits(self, name: str, goal: Goal) -> bool:
        return any(facts.fits(name) for facts in self._known.of(goal, "string"))

    def _others(
        self, facts: Objects, names: frozenset[str]
    ) -> Iterator[tuple[Strings, Goal, bool]]:
        """Yield the languages of other names, the schemas of their values, and if they are open."""
        patterns: dict[tuple[str, bool], Language] = {
            language.key: language for goals in facts.sets for language, _ in goals.patterns
        }
        classes = [(Strings(others=names), frozenset[tuple[str, bool]]())]
        if not patterns and any(NEVER in goals.additional for goals in facts.sets):
            return
        for key, language in patterns.items():
            split = []
            for strings, inside in classes:
                for part, keys in (
                    (Strings(within=(language,)), inside | {key}),
                    (Strings(outside=(language,)), inside),
                ):
                    both = strings.merge(part)
                    if both is not None and not both.is_empty():
                        split.append((both, keys))
            classes = split
            if len(classes) > _MAX_KEY_CLASSES:
                raise UnsupportedSchemaError("patternProperties", "overlap in too many ways")
        is_closing = self._closes and any(goals.is_naming for goals in facts.sets)
        for strings, inside in classes:
            goal: Goal = frozenset().union(*(_value(goals, inside) for goals in facts.sets))
            if NEVER in goal:
                continue
            is_open = not is_closing or any(
                goals.is_explicit or any(lang.key in inside for lang, _ in goals.patterns)
                for goals in facts.sets
            )
            for narrowed in self._narrowed(strings, facts.names):
                yield narrowed, goal, is_open

    def _narrowed(self, strings: Strings, names: tuple[Goal, ...]) -> Iterator[Strings]:
        some = [strings]
        for goal in names:
            found = []
            for facts in self._known.of(goal, "string"):
                for part in some:
                    both = part.merge(facts)
                    if both is not None:
                        found.append(both)
            some = found
        yield from (part for part in some if not part.is_empty())


def _names_of(facts: Objects) -> dict[str, None]:
    return dict.fromkeys([*(name for goals in facts.sets for name in goals.names), *facts.required])


def _goal_of(facts: Objects, name: str) -> Goal:
    return frozenset().union(*(goals.goal(name) for goals in facts.sets))


def _value(goals: PropertySet, inside: frozenset[tuple[str, bool]]) -> Goal:
    found = [goal for language, goal in goals.patterns if language.key in inside]
    return frozenset().union(*found) if found else goals.additional
