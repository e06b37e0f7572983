"""What a schema allows, type by type, as alternatives of facts.

Boolean keywords become set operations: `allOf` merges, `anyOf` lists, `not` and the other branches
of `oneOf` use the opposites. Values inside arrays and objects stay goals, so recursion is no
problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from builtin_plugins.grammar_backends.languages.decimals import INTEGER, exact, one_of, others
from builtin_plugins.grammar_backends.schema_compiler.composites import (
    ArrayKeywords,
    ObjectKeywords,
)
from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    ANYTHING,
    NEVER,
    NOTHING,
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
MAX_ALTERNATIVES: Final = 512
MAX_DISJOINT: Final = 2_048
"""Maximum number of alternatives that exclude each other."""
_FEW: Final = 16
"""Number of alternatives up to which empty ones do not matter."""
MAX_WORK: Final = 200_000
"""Maximum number of merges for one document: bounds combinations of combinations."""
_ALL: Final[Mapping[str, Any]] = {
    "null": Values(frozenset((None,))),
    "boolean": Values(frozenset((True, False))),
    "number": Numbers(),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}


class TooManyAlternativesError(UnsupportedSchemaError):
    """A schema has too many combinations of alternatives."""


class Alternatives:
    """The facts of all schemas of one document."""

    def __init__(self, document: Document, *, is_disjoint: bool = False) -> None:
        """`is_disjoint`: the alternatives of a negation exclude each other.

        They are larger, but fewer of their combinations have values.
        """
        self.document = document
        self.is_disjoint = is_disjoint
        self._schemas: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._alike: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[Goal, str], list[Any]] = {}
        self._atoms: dict[tuple[int, bool, str], list[Any]] = {}
        self._empty: dict[Goal, bool] = {}
        self._open: set[tuple[int, bool, str]] = set()
        self._work = 0

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
            found = [_ALL[kind]]
            for number, holds in sorted(goal):
                found = self._merged(found, self._atom(number, holds, kind))
            self._known[key] = found
        return self._known[key]

    def narrowed(self, facts: Any, goal: Goal) -> list[Any]:
        """Return the facts of arrays or objects for which a goal holds too."""
        return self._merged([facts], self.of(goal, "array" if isinstance(facts, Arrays) else "object"))

    def _merged(self, some: list[Any], more: list[Any]) -> list[Any]:
        found = []
        for a in some:
            for b in more:
                for facts in (a, b):
                    if isinstance(facts, UnsupportedSchemaError):
                        raise facts
                self._spend(a, b)
                both = a.merge(b)
                if both is not None:
                    found.append(both)
        return self._at_most(found)

    def _at_most(self, found: list[Any]) -> list[Any]:
        """Return alternatives without empty ones if there are many. Raises if too many are left."""
        if len(found) > _FEW:
            found = [facts for facts in found if not self._is_surely_empty(facts)]
        if len(found) > (MAX_DISJOINT if self.is_disjoint else MAX_ALTERNATIVES):
            raise TooManyAlternativesError("schema", "has too many combinations of alternatives")
        return found

    def _spend(self, a: Any, b: Any) -> None:
        """Count the work of a merge."""
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
            clauses = self._clauses(schema, kind)
            if holds:
                found = [_ALL[kind]]
                for positive, _ in clauses:
                    found = self._merged(found, positive)
            else:
                found = self._opposite(clauses, kind)
        finally:
            self._open.discard(key)
        self._atoms[key] = found
        return found

    def _opposite(self, clauses: Iterable[tuple[Any, Any]], kind: str) -> list[Any]:
        """Return the facts of values for which one of the clauses does not hold."""
        found = []
        before = [_ALL[kind]]
        for positive, negative in clauses:
            some = [*negative]
            is_all = any(facts is _ALL[kind] for facts in some)
            if is_all and not self.is_disjoint:
                return [_ALL[kind]]
            errors = [facts for facts in some if isinstance(facts, UnsupportedSchemaError)]
            if not self.is_disjoint or errors:
                found += some
                continue
            found += self._merged(before, [_ALL[kind]] if is_all else some)
            if is_all:
                break
            holding = [*positive]
            if len(holding) == 1:
                before = self._merged(before, holding)
        return found

    def _clauses(self, schema: Mapping[str, Any], kind: str) -> Iterator[tuple[Any, Any]]:
        """Yield each constraint of a schema on values of a type, and its opposite.

        In the order of the keywords, since properties are written in that order.
        """
        document = self.document
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
                raise UnsupportedSchemaError("enum", "must be a list", self.document.path(schema))
            yield self._of_values(schema, schema["enum"], kind)
        elif self.document.draft >= 6:
            yield self._of_values(schema, [schema["const"]], kind)

    def _of_kind(self, schema: Mapping[str, Any], kind: str) -> Iterator[tuple[Any, Any]]:
        path = self.document.path(schema)
        if kind == "number":
            for facts in numbers(schema, self.document.draft, path):
                other = opposite(facts)
                yield [facts], [] if other is None else [other]
        elif kind == "string":
            some, negative = strings(schema, path)
            for strings_facts in some:
                yield [strings_facts], []
            yield [_ALL[kind]], negative
        elif kind == "array":
            yield from ArrayKeywords(schema, self).clauses()
        elif kind == "object":
            yield from ObjectKeywords(schema, self).clauses()

    def _of_schema(self, schema: Any, kind: str) -> tuple[Any, Any]:
        return _Lazy(self, self.goal(schema), kind), _Lazy(self, self.goal(schema, False), kind)

    def _of_type(self, schema: Mapping[str, Any], kind: str) -> tuple[Any, Any]:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in names:
            if name not in (*TYPES, "integer"):
                raise UnsupportedSchemaError(
                    "type", f"{name!r:.60} is unknown", self.document.path(schema)
                )
        if kind in names:
            return [_ALL[kind]], []
        if kind == "number" and "integer" in names:
            return [Numbers(INTEGER)], [Numbers(others(INTEGER))]
        return [], [_ALL[kind]]

    def _of_values(
        self, schema: Mapping[str, Any], values: list[Any], kind: str
    ) -> tuple[Any, Any]:
        """Return the facts of a list of values."""
        mine = [value for value in values if kind_of(value) == kind]
        if kind in ("null", "boolean"):
            fits = frozenset(mine)
            rest = _ALL[kind].values - fits
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
                    "enum", "has a number of over 400 digits", self.document.path(schema)
                )
            return [Numbers(dfa)], [Numbers(others(dfa))]
        goals = [self.goal(self._schema_of(value, schema)) for value in mine]
        return (
            [facts for goal in goals for facts in self.of(goal, kind)],
            _Lazy(self, frozenset((number, False) for goal in goals for number, _ in goal), kind),
        )

    def _schema_of(self, value: Any, near: Any) -> Any:
        """Return a schema of one array or object."""
        if isinstance(value, list):
            found: dict[str, Any] = {
                "type": "array",
                "prefixItems" if self.document.draft >= 2020 else "items": [
                    self.document.add({"enum": [item]}, near) for item in value
                ],
                "minItems": len(value),
                "maxItems": len(value),
            }
        else:
            found = {
                "type": "object",
                "properties": {
                    name: self.document.add({"enum": [item]}, near) for name, item in value.items()
                },
                "required": [*value],
                "additionalProperties": False,
            }
        return self.document.add(found, near)

    def _combined(
        self, schema: Mapping[str, Any], keyword: str, kind: str
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the constraints of a keyword that combines schemas."""
        value = schema[keyword]
        path = self.document.path(schema)
        if keyword in ("allOf", "anyOf", "oneOf") and not isinstance(value, list):
            raise UnsupportedSchemaError(keyword, "must be a list", path)
        if keyword == "$ref" or (keyword == "$dynamicRef" and self.document.draft >= 2020):
            yield self._of_schema(self.document.resolve(schema, keyword, value), kind)
        elif keyword == "$recursiveRef" and self.document.draft == 2019:
            raise UnsupportedSchemaError(keyword, "is not supported", path)
        elif keyword == "allOf":
            for part in value:
                yield self._of_schema(part, kind)
        elif keyword == "anyOf":
            goals = [self.goal(part) for part in value]
            none: Goal = frozenset().union(*map(self._not, goals))
            yield _Lazy(self, goals, kind, is_any=True), _Lazy(self, none, kind)
        elif keyword == "oneOf":
            goals = [self.goal(part) for part in value]
            near = self._siblings(schema, kind)
            yield _Lazy(self, goals, kind, near), _Lazy(self, goals, kind, is_opposite=True)
        elif keyword == "not":
            positive, negative = self._of_schema(value, kind)
            yield negative, positive
        elif keyword == "if" and self.document.draft >= 7 and {"then", "else"} & {*schema}:
            test = self.goal(value)
            not_test = self.goal(value, False)
            then = schema.get("then", True)
            other = schema.get("else", True)
            fits = [test | self.goal(then), not_test | self.goal(other)]
            fails = [test | self.goal(then, False), not_test | self.goal(other, False)]
            yield _Lazy(self, fits, kind, is_any=True), _Lazy(self, fails, kind, is_any=True)

    def _not(self, goal: Goal) -> Goal:
        opposites = self.opposites(goal)
        return opposites[0] if opposites else NOTHING

    def _siblings(self, schema: Mapping[str, Any], kind: str) -> Any:
        """Return facts that hold by other keywords of a schema."""
        found = [_ALL[kind]]
        plain = {name: part for name, part in schema.items() if name not in _COMBINING}
        for positive, _ in self._clauses(self.document.add(plain, schema), kind):
            some = [*positive]
            if len(some) == 1:
                found = self._merged(found, some) or found
        return found[0]

    def exactly_one(self, goals: list[Goal], kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which one goal holds and no other does.

        `near`: facts that hold in any case.
        """
        found = []
        for index, goal in enumerate(goals):
            mine = self.of(goal, kind)
            rest = goals[:index] + goals[index + 1 :]
            for facts in mine:
                some = [facts]
                for other in rest:
                    some = self._without(some, other, kind, near)
                found += some
        return found

    def _without(self, some: list[Any], goal: Goal, kind: str, near: Any) -> list[Any]:
        """Return the facts of values for which a goal does not hold; `near` holds in any case."""
        known = self.of(goal, kind)
        apart = [self.are_disjoint(self._merged([facts], [near]), known) for facts in some]
        if all(apart):
            return some
        found = []
        for facts, is_apart in zip(some, apart, strict=True):
            found += (
                [facts] if is_apart else self._merged([facts], self.of(self._not(goal), kind))
            )
        return self._at_most(found)

    def not_exactly_one(self, goals: list[Goal], kind: str) -> list[Any]:
        """Return the facts of values for which no goal holds, or two do."""
        found = list(self.of(frozenset().union(*map(self._not, goals)), kind))
        for index, goal in enumerate(goals):
            for other in goals[index + 1 :]:
                found += self.of(goal | other, kind)
        return found

    def are_disjoint(self, some: Iterable[Any], more: Iterable[Any]) -> bool:
        """Return whether it is certain that no value fits both."""
        more = [*more]
        return all(self._apart(a, b) for a in some for b in more)

    def _apart(self, a: Any, b: Any) -> bool:
        self._spend(a, b)
        both = a.merge(b)
        return both is None or self._is_surely_empty(both)

    def _is_surely_empty(self, facts: Any) -> bool:
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
                    for facts in self.of(goal, kind)
                )
            except TooManyAlternativesError:
                raise
            except UnsupportedSchemaError:
                pass  # it refers to itself, or cannot be held anyway
        return self._empty[goal]


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


class _Lazy:
    """Alternatives that are made when they are iterated: only one polarity is needed."""

    def __init__(
        self,
        known: Alternatives,
        goals: Any,
        kind: str,
        near: Any = None,
        *,
        is_any: bool = False,
        is_opposite: bool = False,
    ) -> None:
        self._make = (known, goals, kind, near, is_any, is_opposite)

    def __iter__(self) -> Iterator[Any]:
        known, goals, kind, near, is_any, is_opposite = self._make
        if isinstance(goals, frozenset):
            return iter(known.of(goals, kind))
        if is_any:
            return iter([facts for goal in goals for facts in known.of(goal, kind)])
        if is_opposite:
            return iter(known.not_exactly_one(goals, kind))
        return iter(known.exactly_one(goals, kind, near))


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
