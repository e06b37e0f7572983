"""Rules of one shape of objects: named properties in order, then others."""

from __future__ import annotations

from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.rules import Rule, Times
from builtin_plugins.grammar_backends.schema_compiler.shapes import ObjectShape, Other
from builtin_plugins.grammar_backends.schema_compiler.value_rules import ValueRules


class ObjectRules:
    """Writes the rules of one shape of objects, after the opening brace."""

    def __init__(self, values: ValueRules, shape: ObjectShape) -> None:
        self._values = values
        self._shape = shape
        self._rules = values.rules
        self._known: dict[tuple[int, int, bool], Rule] = {}
        self._written: set[tuple[int, int, bool]] = set()
        num_required = sum(part.is_required for part in shape.named) + bool(shape.last)
        num_named = len(shape.named)
        bounded = shape.high is not None and (
            bool(shape.others) or shape.high < num_named + bool(shape.last)
        )
        self._high = shape.high if bounded else None
        self._low = shape.low if shape.low > num_required else 0
        self._cap = max(self._low, 0 if self._high is None else self._high + 1)
        self._others = self._pairs(shape.others)
        self._last = self._pairs(shape.last)

    def start(self) -> Rule:
        """Return the first rule."""
        return self._state(0, 0, False)

    def _pairs(self, parts: tuple[Other, ...]) -> Rule | None:
        if not parts:
            return None
        rule = self._rules.new()
        for part in parts:
            for key in self._values.scalars.keys(part.names):
                self._rules.add(rule, key, self._values.rule(part.goal))
        return rule

    def _state(self, index: int, count: int, is_later: bool) -> Rule:
        """Return the rule from a property on, with so many properties before it."""
        pending = [(index, min(count, self._cap), is_later)]
        first = pending[0]
        while pending:
            key = pending.pop()
            if key in self._written:
                continue
            rule = self._reference(key)
            self._written.add(key)
            index, count, is_later = key
            if index == len(self._shape.named):
                self._finish(rule, count, is_later)
                continue
            part = self._shape.named[index]
            comma = (self._values.marks[","],) if is_later else ()
            if self._high is None or count < self._high:
                after = (index + 1, min(count + 1, self._cap), True)
                self._rules.add(
                    rule,
                    *comma,
                    self._values.scalars.key(part.name),
                    self._values.rule(part.goal),
                    self._reference(after),
                )
                pending.append(after)
            if not part.is_required:
                after = (index + 1, count, is_later)
                self._rules.add(rule, self._reference(after))
                pending.append(after)
        return self._known[first]

    def _reference(self, key: tuple[int, int, bool]) -> Rule:
        if key not in self._known:
            self._known[key] = self._rules.new()
        return self._known[key]

    def _finish(self, rule: Rule, count: int, is_later: bool) -> None:
        """Write the other properties and the end."""
        last = self._last
        missing = self._low - count - (last is not None)
        room = None if self._high is None else self._high - count - (last is not None)
        if room is not None and room < 0:
            return
        end = self._values.marks["}"]
        comma = self._values.marks[","]
        if self._others is None or room == 0:
            if missing <= 0:
                first = (comma,) if is_later else ()
                self._rules.add(rule, *((*first, last) if last else ()), end)
            return
        if missing > 1 or (missing == 1 and last is not None):
            raise UnsupportedSchemaError(
                "minProperties", "of properties with any names is not supported"
            )
        tail = () if last is None else (comma, last)
        if is_later:
            self._rules.add(rule, Times((comma, self._others), max(0, missing), room), *tail, end)
            return
        more = Times((comma, self._others), 0, None if room is None else room - 1)
        self._rules.add(rule, self._others, more, *tail, end)
        if missing <= 0:
            self._rules.add(rule, *(() if last is None else (last,)), end)
