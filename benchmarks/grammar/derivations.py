"""Decides whether a grammar of ours derives a JSON value in any spelling.

A value has many spellings: its properties in any order, its numbers in several notations. Trying
them one by one on a matcher takes exponential time. This reads the grammar's text instead, with
sets of remaining properties in place of orders: its time is polynomial for the compiler's grammars.
Terminals are matched by the library, each as a grammar of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final, NamedTuple

from builtin_plugins.grammar_backends.languages.decimals import text_of

TerminalFactory = Callable[[str], Callable[[bytes], bool]]
"""Returns the test for whole matches of a terminal, given the grammar `start: TERMINAL`."""
Text = Any
"""A spelling: bytes, or a pair of spellings."""
_TOKEN: Final = re.compile(r'""|[A-Za-z]\w*|[()|]|[*+?]|\{\d+,\d*\}')
_NAME: Final = re.compile(r"T\d+")
_PLAIN: Final = re.compile(r"/((?:[A-Za-z0-9]|\\x\{[0-9a-f]+\})*)(\[[^\]]*\]\*:\[[^\]]*\][*?]?)?/")
_CODE: Final = re.compile(r"\\x\{([0-9a-f]+)\}")
_FEWEST: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Repeated(NamedTuple):
    """Alternatives, several times."""

    bodies: list[list[Any]]
    low: int
    high: int | None


class Frame(NamedTuple):
    """A position in a value: what may come next there."""

    value: int
    """Number of the container, or of the whole value before it is written."""
    rest: Any
    """Index of the next item; numbers of the properties that are missing; None: the whole value."""
    expects: str
    """`value`, `first` item or key, `comma` or end, `item` or key after a comma, or `end`."""
    key: int = -1
    """Property of which the value comes next."""
    last: int = -1
    """Property that must be the last one; -1: none."""


_CLOSED: Final = Frame(-1, None, "end")


class Derivations:
    """The values that one grammar derives."""

    def __init__(self, grammar: str, make: TerminalFactory) -> None:
        self._make = make
        self._rules: dict[str, list[list[Any]]] = {}
        self._terminals: dict[str, str] = {}
        for line in grammar.splitlines():
            name, _, text = line.partition(": ")
            if _NAME.fullmatch(name):
                self._terminals[name] = text
            elif not line.startswith("%"):
                self._rules[name] = _alternatives(_TOKEN.findall(text))
        self._fixed: dict[str, bytes] = {}
        """Texts of terminals that match one text only, apart from blanks."""
        for name, text in self._terminals.items():
            if found := _PLAIN.fullmatch(text):
                plain = _CODE.sub(lambda code: chr(int(code[1], 16)), found[1])
                self._fixed[name] = plain.encode() + (b": " if found[2] else b"")
        self._reach: dict[str, tuple[set[bytes], list[str]]] = {}
        self._tests: dict[str, Callable[[bytes], bool]] = {}
        self._matched: dict[tuple[str, bytes], bool] = {}

    def spelling(self, value: Any, *, any_notation: bool) -> bytes | None:
        """Return a text of a value that the grammar derives; None if there is none.

        `any_notation`: 1.0 may be written as 1.
        """
        for any_last in (False, True):
            found = _Search(self, value, any_notation=any_notation, any_last=any_last).run()
            if found is not None:
                return found
        return None

    def rule(self, name: str) -> list[list[Any]]:
        """Return the alternatives of a rule."""
        return self._rules[name]

    def may_write(self, rule: str, text: bytes) -> bool:
        """Return whether some terminal of a rule matches a text, outside of nested values."""
        if rule not in self._reach:
            names = self._reached(rule)
            fixed = {self._fixed[name] for name in names if name in self._fixed}
            self._reach[rule] = fixed, [name for name in names if name not in self._fixed]
        fixed, others = self._reach[rule]
        return text in fixed or any(self.matches(name, text) for name in others)

    def _reached(self, rule: str) -> dict[str, None]:
        found: dict[str, None] = {}
        seen = {rule}
        pending = [*self._rules[rule]]
        while pending:
            for symbol in pending.pop():
                if isinstance(symbol, Repeated):
                    pending += symbol.bodies
                elif _NAME.fullmatch(symbol):
                    found[symbol] = None
                    if self.matches(symbol, b"{") or self.matches(symbol, b"["):
                        break
                elif symbol not in seen:
                    seen.add(symbol)
                    pending += self._rules[symbol]
        return found

    def matches(self, terminal: str, text: bytes) -> bool:
        """Return whether a terminal matches a whole text."""
        if terminal in self._fixed:
            return self._fixed[terminal] == text
        key = (terminal, text)
        if key not in self._matched:
            if terminal not in self._tests:
                self._tests[terminal] = self._test(terminal)
            self._matched[key] = self._tests[terminal](text)
        return self._matched[key]

    def _test(self, terminal: str) -> Callable[[bytes], bool]:
        needed = {terminal: None}
        pending = [terminal]
        while pending:
            for name in _NAME.findall(self._terminals[pending.pop()]):
                if name not in needed and name in self._terminals:
                    needed[name] = None
                    pending.append(name)
        lines = [f"start: {terminal}", *(f"{name}: {self._terminals[name]}" for name in needed)]
        return self._make("\n".join(lines))


class _Search:
    """The derivations of one value."""

    def __init__(
        self, grammar: Derivations, value: Any, *, any_notation: bool, any_last: bool
    ) -> None:
        self._grammar = grammar
        self._any_notation = any_notation
        self._any_last = any_last
        self._values: list[Any] = []
        self._numbers: dict[str, int] = {}
        self._root = self._number(value)
        self._known: dict[tuple[str, Frame, bool, bool], dict[Frame, Text]] = {}

    def run(self) -> bytes | None:
        found = self._rule(
            "start", Frame(self._root, None, "value"), ordered=False, last=False
        ).get(_CLOSED)
        return None if found is None else _flat(found)

    def _number(self, value: Any) -> int:
        """Return the number of a value; equal ones share it."""
        key = json.dumps(value)
        if key not in self._numbers:
            if isinstance(value, dict):
                value = [(name, self._number(part)) for name, part in value.items()]
                made: Any = ("object", value)
            elif isinstance(value, list):
                made = ("array", [self._number(part) for part in value])
            else:
                made = ("scalar", self._notations(value))
            self._numbers[key] = len(self._values)
            self._values.append(made)
        return self._numbers[key]

    def _notations(self, value: Any) -> list[bytes]:
        return [text.encode() for text in notations(value, any_notation=self._any_notation)]

    # --- the grammar ----------------------------------------------------------------

    def _rule(self, name: str, frame: Frame, *, ordered: bool, last: bool) -> dict[Frame, Text]:
        """Return the frames after a rule.

        `ordered`: properties are taken in one order; `last`: the container ends with the rule.
        """
        key = (name, frame, ordered, last)
        if key not in self._known:
            found: dict[Frame, Text] = {}
            if not last or self._may_end(name, frame):
                for body in self._grammar.rule(name):
                    for after, text in self._body(body, frame, ordered=ordered, last=last).items():
                        found.setdefault(after, text)
            self._known[key] = found
        return self._known[key]

    def _may_end(self, rule: str, frame: Frame) -> bool:
        """Return whether each missing property has a terminal in a rule."""
        if frame.expects == "key" or not isinstance(frame.rest, frozenset):
            return True
        content = self._values[frame.value][1]
        return all(self._grammar.may_write(rule, _key(content[key][0])) for key in frame.rest)

    def _body(
        self, body: list[Any], frame: Frame, *, ordered: bool, last: bool
    ) -> dict[Frame, Text]:
        """Return the frames after symbols; a container that they open ends within them."""
        states: dict[tuple[Frame, Frame | None], Text] = {(frame, None): b""}
        for index, symbol in enumerate(body):
            after: dict[tuple[Frame, Frame | None], Text] = {}
            for (here, outer), text in states.items():
                for (there, opened), more in self._symbol(
                    symbol,
                    here,
                    ordered=ordered and outer is None,
                    last=index == len(body) - 1 and (last or outer is not None),
                ):
                    around = outer if opened is None else opened
                    state = (there, around)
                    if there == _CLOSED and around is not None:
                        state = (self._after_value(around), None)
                    after.setdefault(state, (text, more))
            states = after
            if not states:
                break
        return {there: text for (there, outer), text in states.items() if outer is None}

    def _symbol(
        self, symbol: Any, frame: Frame, *, ordered: bool, last: bool
    ) -> Iterator[tuple[tuple[Frame, Frame | None], Text]]:
        if isinstance(symbol, Repeated):
            for after, text in self._repeated(symbol, frame).items():
                yield (after, None), text
        elif _NAME.fullmatch(symbol):
            for after, text in self._terminal(symbol, frame, ordered):
                yield (after, frame if after.expects == "first" else None), text
        else:
            for after, text in self._rule(symbol, frame, ordered=ordered, last=last).items():
                yield (after, None), text

    def _repeated(self, symbol: Repeated, frame: Frame) -> dict[Frame, Text]:
        found: dict[Frame, Text] = {frame: b""} if not symbol.low else {}
        here: dict[Frame, Text] = {frame: b""}
        count = 0
        while here and (symbol.high is None or count < symbol.high):
            count += 1
            after: dict[Frame, Text] = {}
            for part, text in here.items():
                for body in symbol.bodies:
                    for there, more in self._body(body, part, ordered=True, last=False).items():
                        after.setdefault(there, (text, more))
            here = after
            if count >= symbol.low:
                for there, text in here.items():
                    found.setdefault(there, text)
        return found

    # --- the value ------------------------------------------------------------------

    def _terminal(
        self, terminal: str, frame: Frame, ordered: bool
    ) -> Iterator[tuple[Frame, bytes]]:
        """Yield the frames after a terminal, with what it writes."""
        matches = self._grammar.matches
        number = self._expected(frame)
        if number is not None:
            kind, content = self._values[number]
            if kind == "scalar":
                for text in content:
                    if matches(terminal, text):
                        yield self._after_value(frame), text
            elif kind == "array" and matches(terminal, b"["):
                yield Frame(number, 0, "first"), b"["
            elif kind == "object" and matches(terminal, b"{"):
                rest = frozenset(range(len(content)))
                lasts = rest if self._any_last else ()
                for last in (-1, *lasts):
                    yield Frame(number, rest, "first", last=last), b"{"
        if frame.expects not in ("first", "comma", "item") or frame.rest is None:
            return
        kind, content = self._values[frame.value]
        is_array = kind == "array"
        is_empty = frame.rest == len(content) if is_array else not frame.rest
        end = b"]" if is_array else b"}"
        if is_empty and frame.expects != "item" and matches(terminal, end):
            yield _CLOSED, end
        if not is_empty and frame.expects == "comma" and matches(terminal, b", "):
            yield frame._replace(expects="item"), b", "
        if not is_array and frame.expects != "comma":
            for key in self._keys(frame, ordered):
                text = _key(content[key][0])
                if matches(terminal, text):
                    yield frame._replace(expects="key", key=key), text

    def _keys(self, frame: Frame, ordered: bool) -> list[int]:
        """Return the properties that may come next."""
        keys = sorted(frame.rest)
        if frame.last >= 0 and len(keys) > 1:
            keys.remove(frame.last)
        return keys[:1] if ordered else keys

    def _expected(self, frame: Frame) -> int | None:
        """Return the number of the value that comes next."""
        if frame.expects == "value":
            return frame.value
        kind, content = self._values[frame.value] if frame.value >= 0 else ("", ())
        if frame.expects == "key":
            return int(content[frame.key][1])
        if kind == "array" and frame.expects in ("first", "item") and frame.rest < len(content):
            return int(content[frame.rest])
        return None

    def _after_value(self, frame: Frame) -> Frame:
        if frame.expects == "value":
            return _CLOSED
        if frame.expects == "key":
            return frame._replace(rest=frame.rest - {frame.key}, expects="comma", key=-1)
        return frame._replace(rest=frame.rest + 1, expects="comma")


def _key(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode() + b": "


def notations(value: Any, *, any_notation: bool) -> list[str]:
    """Return the ways to write a scalar; integers without a fraction only if `any_notation`."""
    found = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == int(value) and not any_notation:
            return found
        number = text_of(Fraction(found[0]))
        if number is not None:
            found.append(number)
    return [*dict.fromkeys(found)]


def _alternatives(tokens: list[str]) -> list[list[Any]]:
    """Parse a rule's text; consumes the tokens up to a closing bracket."""
    found: list[list[Any]] = [[]]
    while tokens:
        token = tokens.pop(0)
        if token == ")":
            break
        if token == "|":
            found.append([])
        elif token == "(":
            bodies = _alternatives(tokens)
            low: int = 1
            high: int | None = 1
            if tokens and tokens[0] in _FEWEST:
                low, high = _FEWEST[tokens.pop(0)]
            elif tokens and tokens[0].startswith("{"):
                bounds = tokens.pop(0)[1:-1].split(",")
                low = int(bounds[0])
                high = int(bounds[1]) if bounds[1] else None
            found[-1].append(Repeated(bodies, low, high))
        elif token != '""':
            found[-1].append(token)
    return found


def _flat(text: Text) -> bytes:
    parts = []
    pending = [text]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending += part[::-1]
        else:
            parts.append(part)
    return b"".join(parts)
