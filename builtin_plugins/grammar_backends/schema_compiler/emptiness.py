"""Which facts and goals surely have no value, as far as that is simple to see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from builtin_plugins.grammar_backends.schema_compiler.document import (
    TooManyAlternativesError,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import NEVER, Goal, Objects, Strings
from builtin_plugins.grammar_backends.schema_compiler.keywords import TYPES


class KnownFacts(Protocol):
    """The facts of all schemas (`Alternatives`)."""

    def of(self, goal: Goal, kind: str) -> list[Any]:
        """Return the facts of which one must hold for values of a type."""

    def spend(self, a: Any, b: Any) -> None:
        """Count the work of a merge."""


class Emptiness:
    """Decides about the goals of one document; remembers the answers."""

    def __init__(self, known: KnownFacts) -> None:
        self._known = known
        self._empty: dict[Goal, bool] = {}

    def are_disjoint(self, some: Iterable[Any], more: Iterable[Any]) -> bool:
        """Return whether it is certain that no value fits both."""
        more = [*more]
        return all(self._apart(a, b) for a in some for b in more)

    def _apart(self, a: Any, b: Any) -> bool:
        self._known.spend(a, b)
        both = a.merge(b)
        return both is None or self.has_no_value(both)

    def has_no_value(self, facts: Any) -> bool:
        """Return whether it is certain and simple to see that no value fits facts."""
        if isinstance(facts, Strings):
            return facts.is_empty()
        if isinstance(facts, Objects):
            return any(
                self.is_surely_empty(frozenset().union(*(s.goal(name) for s in facts.sets)))
                for name in facts.required
            )
        return False

    def is_surely_empty(self, goal: Goal) -> bool:
        """Return whether it is certain and simple to see that no value fits a goal."""
        if NEVER in goal or not goal:
            return NEVER in goal
        if goal not in self._empty:
            self._empty[goal] = False  # while it is looked at
            try:
                self._empty[goal] = all(
                    isinstance(facts, Strings) and facts.is_empty()
                    for kind in TYPES
                    for facts in self._known.of(goal, kind)
                )
            except TooManyAlternativesError:
                raise
            except UnsupportedSchemaError:
                pass  # it refers to itself, or cannot be held anyway
        return self._empty[goal]
