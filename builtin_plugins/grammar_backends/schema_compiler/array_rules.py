"""Rules of arrays: items in order, counted items, and distinct items."""

from __future__ import annotations

import json
from itertools import product
from typing import Final

from builtin_plugins.grammar_backends.languages.decimals import notation
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.facts import Arrays, Goal
from builtin_plugins.grammar_backends.schema_compiler.rules import Rule, Symbol, Times
from builtin_plugins.grammar_backends.schema_compiler.value_rules import ValueRules

_MAX_UNIQUE: Final = 8
"""Maximum number of values of which the items of an array can be distinct."""
_MAX_COUNTS: Final = 2_000


class ArrayRules:
    """Writes the rules of arrays after the opening bracket."""

    def __init__(self, values: ValueRules) -> None:
        self._values = values
        self._rules = values.rules

    def after_bracket(self, facts: Arrays) -> Rule:
        """Return the rule of an array's items and its end."""
        if facts.is_unique and (facts.high is None or facts.high > 1):
            return self._unique(facts)
        if facts.contains:
            return self._containing(facts)
        rule = self._rules.new()
        if facts.high == 0:
            self._rules.add(rule, self._values.marks["]"])
            return rule
        size = len(facts.first)
        end = self._rules.new()
        if facts.high is None or facts.high > size:
            more = Times(
                (self._values.marks[","], self._values.rule(facts.rest)),
                max(0, facts.low - max(size, 1)),
                None if facts.high is None else facts.high - max(size, 1),
            )
        else:
            more = Times((self._values.marks[","],), 0, 0)
        self._rules.add(end, more, self._values.marks["]"])
        after = end
        for index in range(size - 1, 0, -1):
            here = self._rules.new()
            if facts.high is None or index < facts.high:
                self._rules.add(
                    here, self._values.marks[","], self._values.rule(facts.first[index]), after
                )
            if index >= facts.low:
                self._rules.add(here, self._values.marks["]"])
            after = here
        self._rules.add(rule, self._values.rule(facts.item(0)), after)
        if facts.low == 0:
            self._rules.add(rule, self._values.marks["]"])
        return rule

    def _containing(self, facts: Arrays) -> Rule:
        """Return the rule of an array with counted items."""
        parts = facts.contains
        limits = [part.low if part.high is None else part.high + 1 for part in parts]
        longest = max(len(facts.first), facts.low, (facts.high or 0) + 1)
        size = longest + 1
        for limit in limits:
            size *= 2 * (limit + 1)
        if size > _MAX_COUNTS:
            raise UnsupportedSchemaError("contains", "counts too many items")
        known: dict[tuple[int, ...], Rule] = {}

        def state(length: int, *counts: int) -> Rule:
            key = (min(length, longest), *counts)
            if key not in known:
                known[key] = self._rules.new()
                pending.append(key)
            return known[key]

        pending: list[tuple[int, ...]] = []
        start = state(0, *(0 for _ in parts))
        while pending:
            key = pending.pop()
            length, *counts = key
            enough = all(count >= part.low for count, part in zip(counts, parts, strict=True))
            if enough and length >= facts.low:
                self._rules.add(known[key], self._values.marks["]"])
            if facts.high is not None and length >= facts.high:
                continue
            comma = () if length == 0 else (self._values.marks[","],)
            for fits in product((True, False), repeat=len(parts)):
                goal = facts.item(length)
                after = []
                for part, count, limit, fit in zip(parts, counts, limits, fits, strict=True):
                    after.append(min(count + fit, limit))
                    if fit:
                        goal |= part.goal
                    elif part.high is not None:
                        goal |= self._opposite(part.goal)
                exceeded = any(
                    part.high is not None and count > part.high
                    for part, count in zip(parts, after, strict=True)
                )
                if not exceeded:
                    self._rules.add(
                        known[key], *comma, self._values.rule(goal), state(length + 1, *after)
                    )
        return start

    def _opposite(self, goal: Goal) -> Goal:
        opposites = self._values.known.opposites(goal)
        if len(opposites) > 1:
            raise UnsupportedSchemaError("maxContains", "of a combination is not supported")
        return opposites[0] if opposites else frozenset(((-1, True),))

    def _unique(self, facts: Arrays) -> Rule:
        """Return the rule of distinct items, of which there are few."""
        values = None if facts.first or facts.contains else self._distinct(facts.rest)
        if values is None or len(values) > _MAX_UNIQUE:
            raise UnsupportedSchemaError(
                "uniqueItems", f"of more than {_MAX_UNIQUE} possible values is not supported"
            )
        known: dict[int, Rule] = {}
        high = len(values) if facts.high is None else facts.high

        def state(used: int) -> Rule:
            if used not in known:
                known[used] = rule = self._rules.new()
                length = used.bit_count()
                if length >= facts.low:
                    self._rules.add(rule, self._values.marks["]"])
                comma = () if length == 0 else (self._values.marks[","],)
                for index, value in enumerate(values or ()):
                    if length < high and not used & 1 << index:
                        self._rules.add(rule, *comma, value, state(used | 1 << index))
            return known[used]

        return state(0)

    def _distinct(self, goal: Goal) -> list[Symbol] | None:
        """Return the values of a goal if there are few, all of them scalars."""
        if self._values.known.of(goal, "array") or self._values.known.of(goal, "object"):
            return None
        texts: dict[str, None] = {}
        for kind in ("null", "boolean"):
            for part in self._values.known.of(goal, kind):
                texts.update((json.dumps(value), None) for value in part.values)
        for number in self._values.known.of(goal, "number"):
            some = None if number.dfa is None else notation(number.dfa).texts(_MAX_UNIQUE)
            if some is None:
                return None
            texts.update((text, None) for text in some if text != "-0")
        for strings in self._values.known.of(goal, "string"):
            found = strings.texts
            if found is None:
                product_texts = strings.dfa().texts(_MAX_UNIQUE) if strings.within else None
                if product_texts is None:
                    return None
                found = frozenset(product_texts)
            texts.update(
                (json.dumps(text, ensure_ascii=False), None)
                for text in sorted(filter(strings.fits, found))
            )
        return [self._values.scalars.literal(text) for text in texts]
