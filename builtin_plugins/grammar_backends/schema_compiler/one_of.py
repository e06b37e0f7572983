"""Values for which exactly one of several schemas holds, and the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from builtin_plugins.grammar_backends.schema_compiler.emptiness import Emptiness
from builtin_plugins.grammar_backends.schema_compiler.facts import Goal


class MergingFacts(Protocol):
    """The facts of all schemas, and how they are merged (`Alternatives`)."""

    def of(self, goal: Goal, kind: str) -> list[Any]:
        """Return the facts of which one must hold for values of a type."""

    def negation(self, goal: Goal) -> Goal:
        """Return the opposite of a single schema's goal."""

    def merged(self, some: Iterable[Any], more: Iterable[Any]) -> list[Any]:
        """Return the alternatives of values for which one of each list holds."""

    def limited(self, found: list[Any]) -> list[Any]:
        """Return alternatives without empty ones if there are many. Raises if too many are left."""


class OneOf:
    """Combines the goals of `oneOf`."""

    def __init__(self, known: MergingFacts, emptiness: Emptiness) -> None:
        self._known = known
        self._emptiness = emptiness

    def exactly_one(self, goals: list[Goal], kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which one goal holds and no other does.

        `near`: facts that hold in any case.
        """
        found = []
        for index, goal in enumerate(goals):
            mine = self._known.of(goal, kind)
            rest = goals[:index] + goals[index + 1 :]
            for facts in mine:
                some = [facts]
                for other in rest:
                    some = self._without(some, other, kind, near)
                found += some
        return found

    def _without(self, some: list[Any], goal: Goal, kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which a goal does not hold; `near` holds in any case."""
        known = self._known.of(goal, kind)
        apart = [
            self._emptiness.are_disjoint(self._known.merged([facts], [near]), known)
            for facts in some
        ]
        if all(apart):
            return some
        found = []
        for facts, is_apart in zip(some, apart, strict=True):
            found += (
                [facts]
                if is_apart
                else self._known.merged([facts], self._known.of(self._known.negation(goal), kind))
            )
        return self._known.limited(found)

    def not_exactly_one(self, goals: list[Goal], kind: str) -> list[Any]:
        """Return the facts of values for which no goal holds, or two do."""
        found = list(self._known.of(frozenset().union(*map(self._known.negation, goals)), kind))
        for index, goal in enumerate(goals):
            for other in goals[index + 1 :]:
                found += self._known.of(goal | other, kind)
        return found
