"""What a schema allows, type by type, as alternatives of facts.

Boolean keywords become set operations: `allOf` merges, `anyOf` lists, `not` and the other branches
of `oneOf` use the opposites. Values inside arrays and objects stay goals, so recursion is no
problem.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from builtin_plugins.grammar_backends.schema_compiler.document import (
    CompileTimeError,
    Document,
    TooManyAlternativesError,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.emptiness import Emptiness
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    ANYTHING,
    NEVER,
    NOTHING,
    Arrays,
    Goal,
    Objects,
)
from builtin_plugins.grammar_backends.schema_compiler.keywords import EVERY, SchemaKeywords
from builtin_plugins.grammar_backends.schema_compiler.one_of import OneOf

MAX_ALTERNATIVES: Final = 512
MAX_DISJOINT: Final = 2_048
"""Maximum number of alternatives that exclude each other."""
FEW_ALTERNATIVES: Final = 16
"""Number of alternatives up to which empty ones do not matter."""
MAX_WORK: Final = 200_000
"""Maximum number of merges for one document: bounds combinations of combinations."""


class Alternatives:
    """The facts of all schemas of one document."""

    def __init__(
        self, document: Document, end_s: float = math.inf, *, is_disjoint: bool = False
    ) -> None:
        """`end_s`: CPU time of this thread at which the compilation is stopped.

        `is_disjoint`: the alternatives of a negation exclude each other. They are larger, but
        fewer of their combinations have values.
        """
        self.document = document
        self._end_s = end_s
        self.is_disjoint = is_disjoint
        self._schemas: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._alike: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[Goal, str], list[Any]] = {}
        self._atoms: dict[tuple[int, bool, str], list[Any]] = {}
        self._open: set[tuple[int, bool, str]] = set()
        self._work = 0
        self._keywords = SchemaKeywords(self)
        self._emptiness = Emptiness(self)
        self._one_of = OneOf(self, self._emptiness)

    def goal(self, schema: Any, holds: bool = True) -> Goal:
        """Return the goal that a schema holds, or that it does not."""
        if isinstance(schema, bool):
            return ANYTHING if schema == holds else NOTHING
        if not isinstance(schema, Mapping):
            raise UnsupportedSchemaError("schema", f"must be an object, not {schema!r:.60}")
        if not schema:
            return ANYTHING if holds else NOTHING
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._alike.setdefault(self.document.content(schema), len(self._schemas))
            self._numbers[id(schema)] = number
            if number == len(self._schemas):
                self._schemas.append(schema)
        return frozenset(((number, holds),))

    def path(self, goal: Goal, keyword: str) -> str:
        """Return where a goal's schemas have a keyword, or where the first of them stands."""
        schemas = [self._schemas[number] for number, _ in sorted(goal) if number >= 0]
        holders = [schema for schema in schemas if keyword in schema]
        return self.document.path((holders or schemas or [None])[0])

    def opposites(self, goal: Goal) -> list[Goal]:
        """Return the goals of which one holds if a goal does not."""
        return [
            ANYTHING if number < 0 else frozenset(((number, not holds),))
            for number, holds in sorted(goal)
        ]

    def of(self, goal: Goal, kind: str) -> list[Any]:
        """Return the facts of which one must hold for values of a type."""
        key = (goal, kind)
        if key not in self._known:
            found = [EVERY[kind]]
            for number, holds in sorted(goal):
                found = self.merged(found, self._atom(number, holds, kind))
            self._known[key] = found
        return self._known[key]

    def narrowed(self, facts: Any, goal: Goal) -> list[Any]:
        """Return the facts of arrays or objects for which a goal holds too."""
        return self.merged(
            [facts], self.of(goal, "array" if isinstance(facts, Arrays) else "object")
        )

    def merged(self, some: Iterable[Any], more: Iterable[Any]) -> list[Any]:
        """Return the alternatives of values for which one of each list holds."""
        found = []
        for a in some:
            for b in more:
                for facts in (a, b):
                    if isinstance(facts, UnsupportedSchemaError):
                        raise facts
                self.spend(a, b)
                both = a.merge(b)
                if both is not None:
                    found.append(both)
        return self.limited(found)

    def limited(self, found: list[Any]) -> list[Any]:
        """Return alternatives without empty ones if there are many. Raises if too many are left."""
        if len(found) > FEW_ALTERNATIVES:
            found = [facts for facts in found if not self._emptiness.has_no_value(facts)]
        if len(found) > (MAX_DISJOINT if self.is_disjoint else MAX_ALTERNATIVES):
            raise TooManyAlternativesError("schema", "has too many combinations of alternatives")
        return found

    def check_time(self) -> None:
        """Raise `CompileTimeError` if the time is over."""
        if time.thread_time() > self._end_s:
            raise CompileTimeError

    def spend(self, a: Any, b: Any) -> None:
        """Count the work of a merge."""
        self.check_time()
        self._work += 1
        if isinstance(a, Objects):
            required = len(a.required) + len(b.required)
            self._work += (len(a.sets) + len(b.sets)) * required // 4
        if self._work > MAX_WORK:
            raise TooManyAlternativesError("schema", "has too many combinations of alternatives")

    def _atom(self, number: int, holds: bool, kind: str) -> list[Any]:
        if number == NEVER[0]:
            return []
        key = (number, holds, kind)
        if key in self._atoms:
            return self._atoms[key]
        schema = self._schemas[number]
        if key in self._open:
            raise UnsupportedSchemaError("$ref", "refers to itself", self.document.path(schema))
        self._open.add(key)
        try:
            clauses = self._keywords.clauses(schema, kind)
            if holds:
                found = [EVERY[kind]]
                for positive, _ in clauses:
                    found = self.merged(found, positive)
            else:
                found = self._opposite(clauses, kind)
        finally:
            self._open.discard(key)
        self._atoms[key] = found
        return found

    def _opposite(self, clauses: Iterable[tuple[Any, Any]], kind: str) -> list[Any]:
        """Return the facts of values for which one of the clauses does not hold."""
        found = []
        before = [EVERY[kind]]
        for positive, negative in clauses:
            some = [*negative]
            is_all = any(facts is EVERY[kind] for facts in some)
            if is_all and not self.is_disjoint:
                return [EVERY[kind]]
            errors = [facts for facts in some if isinstance(facts, UnsupportedSchemaError)]
            if not self.is_disjoint or errors:
                found += some
                continue
            found += self.merged(before, [EVERY[kind]] if is_all else some)
            if is_all:
                break
            holding = [*positive]
            if len(holding) == 1:
                before = self.merged(before, holding)
        return found

    def negation(self, goal: Goal) -> Goal:
        """Return the opposite of a single schema's goal."""
        opposites = self.opposites(goal)
        return opposites[0] if opposites else NOTHING

    def implies(self, goal: Goal, other: Goal) -> bool:
        """Return whether it is certain and simple to see that a goal's values fit another one."""
        return all(
            self._emptiness.is_surely_empty(goal | opposite) for opposite in self.opposites(other)
        )

    def exactly_one(self, goals: list[Goal], kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which one goal holds and no other does."""
        return self._one_of.exactly_one(goals, kind, near)

    def not_exactly_one(self, goals: list[Goal], kind: str) -> list[Any]:
        """Return the facts of values for which no goal holds, or two do."""
        return self._one_of.not_exactly_one(goals, kind)
