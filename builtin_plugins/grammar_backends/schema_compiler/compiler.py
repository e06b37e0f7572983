"""Compiles a JSON schema to a grammar in llguidance's Lark dialect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from builtin_plugins.grammar_backends.languages.decimals import notation
from builtin_plugins.grammar_backends.languages.dfa import Dfa, TooComplexError, union
from builtin_plugins.grammar_backends.languages.expressions import ANY as ANY_CHARACTER
from builtin_plugins.grammar_backends.languages.expressions import ANYTHING as ANY_TEXT
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError
from builtin_plugins.grammar_backends.languages.terminals import (
    Terminals,
    TooLargeError,
    quote,
)
from builtin_plugins.grammar_backends.schema_compiler.alternatives import Alternatives
from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    TooManyAlternativesError,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import (
    Arrays,
    Goal,
    Numbers,
    Strings,
)
from builtin_plugins.grammar_backends.schema_compiler.keywords import TYPES
from builtin_plugins.grammar_backends.schema_compiler.rules import (
    Rule,
    Rules,
    Symbol,
    Terminal,
    Times,
    TooManyRulesError,
)
from builtin_plugins.grammar_backends.schema_compiler.shapes import ObjectShape, Other, Shapes

_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
_MAX_UNIQUE: Final = 8
"""Maximum number of values of which the items of an array can be distinct."""
_MAX_FACTORS: Final = 2
"""Maximum number of languages that the library intersects; more are one automaton."""
_MAX_COUNTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The whitespace between JSON tokens, as regexes."""

    around: str = r"[\x{9}\x{a}\x{d}\x{20}]*"
    """Around brackets and before separators."""
    after: str = r"[\x{9}\x{a}\x{d}\x{20}]*"
    """After commas and colons."""


COMPACT: Final = Layout("", r"\x{20}")


class SchemaCompiler:
    """Writes the rules of schemas into one grammar."""

    def __init__(self, layout: Layout, *, closes: bool) -> None:
        """`closes`: objects have only the properties that their schemas name or describe."""
        self.terminals = Terminals()
        self.rules = Rules()
        self._layout = layout
        self._closes = closes

    def add(self, schema: Any) -> Rule:
        """Add a schema and return its rule. Raises `UnsupportedSchemaError`."""
        try:
            document = Document(schema)
            try:
                return self._added(Alternatives(document), schema)
            except TooManyAlternativesError:
                return self._added(Alternatives(document, is_disjoint=True), schema)
        except (RegexError, TooComplexError) as error:
            raise UnsupportedSchemaError("pattern", str(error)) from error
        except (TooManyRulesError, RecursionError) as error:
            raise UnsupportedSchemaError("schema", "is too large") from error
        except UnsupportedSchemaError:
            raise
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UnsupportedSchemaError("schema", f"is malformed: {error}") from error

    def _added(self, known: Alternatives, schema: Any) -> Rule:
        return _Writer(self, known, self._layout, closes=self._closes).value(known.goal(schema))

    def lines(self, root: Rule) -> list[str]:
        """Return the rules of a schema. Raises `UnsupportedSchemaError` if it allows nothing."""
        lines = self.rules.lines(root)
        if not lines:
            raise UnsupportedSchemaError("schema", "allows no value")
        return lines

    def grammar(self, root: Rule) -> str:
        """Return the grammar. Raises `UnsupportedSchemaError` if it allows nothing."""
        return "\n".join([f"start: {root.name}", *self.lines(root), *self.terminals.lines])


def compile_schema(schema: Any, layout: Layout = Layout(), *, closes: bool = True) -> str:
    """Return the grammar of a schema's valid texts. Raises `UnsupportedSchemaError`."""
    compiler = SchemaCompiler(layout, closes=closes)
    return compiler.grammar(compiler.add(schema))


class _Writer:
    """Writes the rules of one document."""

    def __init__(
        self, compiler: SchemaCompiler, known: Alternatives, layout: Layout, *, closes: bool
    ) -> None:
        self._known = known
        self._rules = compiler.rules
        self._terminals = compiler.terminals
        self._layout = layout
        self._shapes = Shapes(known, closes=closes)
        self._goals: dict[Goal, Rule] = {}
        around = layout.around
        self._mark = {
            "[": self._regex(rf"\[{around}"),
            "]": self._regex(rf"{around}\]"),
            "{": self._regex(rf"\{{{around}"),
            "}": self._regex(rf"{around}\}}"),
            ",": self._regex(f"{around},{layout.after}"),
        }
        self._pending: list[tuple[Goal, Rule]] = []

    def value(self, goal: Goal) -> Rule:
        """Return the rule of a goal's values, with all rules that it uses."""
        rule = self._rule(goal)
        while self._pending:
            part, part_rule = self._pending.pop()
            try:
                self._write(part, part_rule)
            except UnsupportedSchemaError as error:
                path = error.path or self._known.path(part, error.keyword)
                raise type(error)(error.keyword, error.why, path) from error
            except (RegexError, TooComplexError, TooLargeError) as error:
                path = self._known.path(part, "pattern")
                why = str(error) or "is too complex"
                raise UnsupportedSchemaError("pattern", why, path) from error
        return rule

    def _rule(self, goal: Goal) -> Rule:
        if goal not in self._goals:
            self._goals[goal] = self._rules.new()
            self._pending.append((goal, self._goals[goal]))
        return self._goals[goal]

    def _write(self, goal: Goal, rule: Rule) -> None:
        facts = {kind: self._known.of(goal, kind) for kind in TYPES}
        for part in (*facts["null"], *facts["boolean"]):
            for value in sorted(part.values, key=str):
                self._rules.add(rule, self._literal(json.dumps(value)))
        numbers = self._numbers(facts["number"])
        if numbers is not None:
            self._rules.add(rule, numbers)
        for strings in facts["string"]:
            for symbol in self._strings(strings):
                self._rules.add(rule, symbol)
        for arrays in facts["array"]:
            self._rules.add(rule, self._mark["["], self._array(arrays))
        for objects in facts["object"]:
            for shape in self._shapes.of(objects):
                self._rules.add(rule, self._mark["{"], _ObjectWriter(self, shape).start())

    # --- terminals ------------------------------------------------------------------

    def _regex(self, text: str) -> Terminal:
        return Terminal(self._terminals.name(self._terminals.regex(text)))

    def _literal(self, text: str) -> Terminal:
        return Terminal(self._terminals.name(self._terminals.literal(text)))

    def _numbers(self, facts: Iterable[Numbers]) -> Terminal | None:
        found: Dfa | None = None
        for part in facts:
            if part.dfa is None:
                return self._regex(_NUMBER)
            found = part.dfa if found is None else union(found, part.dfa)
        if found is None:
            return None
        written = notation(found)
        if written.is_empty():
            return None
        return Terminal(self._terminals.name(self._terminals.dfa(written, encoded=False)))

    def _strings(self, strings: Strings) -> Iterator[Terminal]:
        if strings.is_empty():
            return
        if strings.texts is not None:
            for text in sorted(filter(strings.fits, strings.texts)):
                yield self._literal(json.dumps(text, ensure_ascii=False))
            return
        mark = self._terminals.literal('"')
        yield Terminal(
            self._terminals.name(self._terminals.seq(mark, self._content(strings), mark))
        )

    def keys(self, strings: Strings) -> Iterator[Terminal]:
        """Yield the terminals of names with their colons."""
        colon = self._terminals.regex(f"{self._layout.around}:{self._layout.after}")
        mark = self._terminals.literal('"')
        if strings.texts is None:
            parts = [self._terminals.seq(mark, self._content(strings), mark)]
        else:
            parts = [
                self._terminals.literal(json.dumps(text, ensure_ascii=False))
                for text in sorted(filter(strings.fits, strings.texts))
            ]
        for part in parts:
            yield Terminal(self._terminals.name(self._terminals.seq(part, colon)))

    def key(self, name: str) -> Terminal:
        """Return the terminal of one name with its colon."""
        text = quote(json.dumps(name, ensure_ascii=False))
        return self._regex(f"{text}{self._layout.around}:{self._layout.after}")

    def _content(self, strings: Strings) -> int:
        """Return what is between the quotes of a JSON string."""
        terminals = self._terminals
        parts = []
        if len(strings.within) + len(strings.outside) > _MAX_FACTORS:
            parts.append(terminals.dfa(strings.dfa(), encoded=True))
            strings = replace(strings, within=(), outside=())
        for language in strings.within:
            parts.append(
                terminals.dfa(language.dfa, encoded=True)
                if language.expr is None
                else terminals.expr(language.expr, encoded=True)
            )
        if strings.low or strings.high is not None:
            character = terminals.expr(ANY_CHARACTER, encoded=True)
            parts.append(terminals.repeat(character, strings.low, strings.high))
        if not parts:
            parts.append(terminals.expr(ANY_TEXT, encoded=True))
        for language in strings.outside:
            if language.expr is None:
                parts.append(terminals.dfa(language.dfa.complement(), encoded=True))
            else:
                parts.append(terminals.invert(terminals.expr(language.expr, encoded=True)))
        if strings.others:
            others = [terminals.text(text) for text in sorted(strings.others)]
            parts.append(terminals.invert(terminals.alt(*others)))
        return terminals.both(*parts)

    # --- arrays ---------------------------------------------------------------------

    def _array(self, facts: Arrays) -> Rule:
        """Return the rule of an array's items and its end."""
        if facts.is_unique and (facts.high is None or facts.high > 1):
            return self._unique(facts)
        if facts.contains:
            return self._containing(facts)
        rule = self._rules.new()
        if facts.high == 0:
            self._rules.add(rule, self._mark["]"])
            return rule
        size = len(facts.first)
        end = self._rules.new()
        if facts.high is None or facts.high > size:
            more = Times(
                (self._mark[","], self._rule(facts.rest)),
                max(0, facts.low - max(size, 1)),
                None if facts.high is None else facts.high - max(size, 1),
            )
        else:
            more = Times((self._mark[","],), 0, 0)
        self._rules.add(end, more, self._mark["]"])
        after = end
        for index in range(size - 1, 0, -1):
            here = self._rules.new()
            if facts.high is None or index < facts.high:
                self._rules.add(here, self._mark[","], self._rule(facts.first[index]), after)
            if index >= facts.low:
                self._rules.add(here, self._mark["]"])
            after = here
        self._rules.add(rule, self._rule(facts.item(0)), after)
        if facts.low == 0:
            self._rules.add(rule, self._mark["]"])
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
                self._rules.add(known[key], self._mark["]"])
            if facts.high is not None and length >= facts.high:
                continue
            comma = () if length == 0 else (self._mark[","],)
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
                    self._rules.add(known[key], *comma, self._rule(goal), state(length + 1, *after))
        return start

    def _opposite(self, goal: Goal) -> Goal:
        opposites = self._known.opposites(goal)
        if len(opposites) > 1:
            raise UnsupportedSchemaError("maxContains", "of a combination is not supported")
        return opposites[0] if opposites else frozenset(((-1, True),))

    def _unique(self, facts: Arrays) -> Rule:
        """Return the rule of distinct items, of which there are few."""
        values = None if facts.first or facts.contains else self._values(facts.rest)
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
                    self._rules.add(rule, self._mark["]"])
                comma = () if length == 0 else (self._mark[","],)
                for index, value in enumerate(values or ()):
                    if length < high and not used & 1 << index:
                        self._rules.add(rule, *comma, value, state(used | 1 << index))
            return known[used]

        return state(0)

    def _values(self, goal: Goal) -> list[Symbol] | None:
        """Return the values of a goal if there are few, all of them scalars."""
        if self._known.of(goal, "array") or self._known.of(goal, "object"):
            return None
        texts: dict[str, None] = {}
        for kind in ("null", "boolean"):
            for part in self._known.of(goal, kind):
                texts.update((json.dumps(value), None) for value in part.values)
        for number in self._known.of(goal, "number"):
            some = None if number.dfa is None else notation(number.dfa).texts(_MAX_UNIQUE)
            if some is None:
                return None
            texts.update((text, None) for text in some if text != "-0")
        for strings in self._known.of(goal, "string"):
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
        return [self._literal(text) for text in texts]


class _ObjectWriter:
    """Writes the rules of one shape of objects, after the opening brace."""

    def __init__(self, writer: _Writer, shape: ObjectShape) -> None:
        self._writer = writer
        self._shape = shape
        self._rules = writer._rules
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
            for key in self._writer.keys(part.names):
                self._rules.add(rule, key, self._writer._rule(part.goal))
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
            comma = (self._writer._mark[","],) if is_later else ()
            if self._high is None or count < self._high:
                after = (index + 1, min(count + 1, self._cap), True)
                self._rules.add(
                    rule,
                    *comma,
                    self._writer.key(part.name),
                    self._writer._rule(part.goal),
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
        end = self._writer._mark["}"]
        comma = self._writer._mark[","]
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
