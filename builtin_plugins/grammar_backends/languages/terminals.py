"""Writes expressions and automata as terminals of llguidance's Lark dialect.

Terminals match bytes of the output. In a JSON string each character may be written as itself or by
any of its escapes, so a set of decoded characters becomes an expression over encoded text; boolean
operations on the decoded texts become the same operations on the encoded ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Final

from builtin_plugins.grammar_backends.languages.code_points import (
    Ranges,
    complement,
    intersect,
    normalize,
    of_text,
)
from builtin_plugins.grammar_backends.languages.dfa import Dfa
from builtin_plugins.grammar_backends.languages.expressions import (
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Repeat,
    Seq,
)

_ESCAPED: Final = {
    '"': r"\\\"",
    "\\": r"\\\\",
    "/": r"\\\/",
    "\b": r"\\b",
    "\f": r"\\f",
    "\n": r"\\n",
    "\r": r"\\r",
    "\t": r"\\t",
}
"""Regex of the short escape of each character that has one."""
_BARE: Final = complement(normalize([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
"""Characters that stand for themselves in a JSON string."""
_HEX: Final = "0123456789abcdef"


class TooLargeError(Exception):
    """An automaton is too large to be written as a terminal."""


class Terminals:
    """The terminals of one grammar; equal parts are written once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], int] = {}
        self._texts: list[str] = []
        self._lines: list[str] = []
        self._named: dict[int, str] = {}
        self._exprs: dict[tuple[Expr, bool], int] = {}

    @property
    def lines(self) -> Sequence[str]:
        """The definitions."""
        return self._lines

    def name(self, node: int) -> str:
        """Return the name of the terminal of a part."""
        if node not in self._named:
            self._named[node] = f"T{len(self._named)}"
            self._lines.append(f"{self._named[node]}: {self._texts[node]}")
        return self._named[node]

    def literal(self, text: str) -> int:
        """Return a fixed text of the output."""
        return self._add(("literal", text), f"/{quote(text)}/" if text else '""')

    def text(self, text: str) -> int:
        """Return a decoded text as a JSON string may write it."""
        codes = [((ord(c), ord(c)),) for c in text]
        parts = [
            self.chars(code, encoded=True) for code in codes if not 0xD800 <= code[0][0] < 0xE000
        ]
        return self.seq(*parts) if parts else self.literal("")

    def regex(self, text: str) -> int:
        """Return a regex in llguidance's own syntax."""
        return self._add(("regex", text), f"/{text}/")

    def chars(self, ranges: Ranges, *, encoded: bool) -> int:
        """Return one character of a set, in a JSON string if `encoded`."""
        text = _encoded(ranges) if encoded else _class(ranges)
        return self._add(("chars", ranges, encoded), f"/{text}/")

    def seq(self, *parts: int) -> int:
        """Return the parts one after the other."""
        if len(parts) == 1:
            return parts[0]
        return self._add(("seq", *parts), f"({' '.join(map(self._use, parts))})")

    def alt(self, *parts: int) -> int:
        """Return one of the parts."""
        parts = tuple(dict.fromkeys(parts))
        if len(parts) == 1:
            return parts[0]
        return self._add(("alt", *parts), f"({' | '.join(map(self._use, parts))})")

    def both(self, *parts: int) -> int:
        """Return what all parts match."""
        parts = tuple(dict.fromkeys(parts))
        if len(parts) == 1:
            return parts[0]
        return self._add(("and", *parts), f"({' & '.join(map(self._use, parts))})")

    def invert(self, part: int) -> int:
        """Return what a part does not match, over all bytes."""
        return self._add(("not", part), f"(~({self._use(part)}))")

    def repeat(self, part: int, low: int, high: int | None) -> int:
        """Return a part several times."""
        if high == 0:
            return self.literal("")
        if (low, high) == (1, 1):
            return part
        times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
        if times is None:
            times = f"{{{low},{'' if high is None else high}}}"
        return self._add(("repeat", part, low, high), f"({self._use(part)}){times}")

    def expr(self, expr: Expr, *, encoded: bool) -> int:
        """Return an expression without assertions."""
        key = (expr, encoded)
        if key not in self._exprs:
            self._exprs[key] = self._expr(expr, encoded=encoded)
        return self._exprs[key]

    def _expr(self, expr: Expr, *, encoded: bool) -> int:
        if isinstance(expr, Chars):
            return self.chars(expr.ranges, encoded=encoded)
        if isinstance(expr, Repeat):
            return self.repeat(self.expr(expr.part, encoded=encoded), expr.low, expr.high)
        if isinstance(expr, Not):
            return self.invert(self.expr(expr.part, encoded=encoded))
        if not isinstance(expr, Seq | Alt | And):
            raise TypeError(expr)
        parts = [self.expr(part, encoded=encoded) for part in expr.parts]
        if isinstance(expr, Seq):
            return self.seq(*parts) if parts else self.literal("")
        return self.alt(*parts) if isinstance(expr, Alt) else self.both(*parts)

    def dfa(self, dfa: Dfa, *, encoded: bool) -> int:
        """Return the language of an automaton, by elimination of its states.

        The language must not be empty. Raises `TooLargeError`.
        """
        return _Elimination(self, dfa, encoded=encoded).run()

    def _add(self, key: tuple[object, ...], text: str) -> int:
        if key not in self._nodes:
            self._nodes[key] = len(self._texts)
            self._texts.append(text)
        return self._nodes[key]

    def _use(self, part: int) -> str:
        """Return a part's text, or the name of its terminal if it is long."""
        text = self._texts[part]
        return text if len(text) <= 12 else self.name(part)


_MAX_EDGES: Final = 40_000
"""Maximum number of edges that the elimination of one automaton's states writes."""


class _Elimination:
    """Turns an automaton into an expression."""

    def __init__(self, terminals: Terminals, dfa: Dfa, *, encoded: bool) -> None:
        self._terminals = terminals
        self._num_edges = 0
        alive = dfa.live()
        sets = dfa.alphabet.ranges()
        self._after: dict[int, dict[int, int]] = {-1: {0: terminals.literal("")}, -2: {}}
        """Expression of each edge; -1 is the start, -2 the end."""
        for state, row in enumerate(dfa.steps):
            if not alive[state]:
                continue
            by_target: dict[int, list[tuple[int, int]]] = {}
            for group, target in enumerate(row):
                if alive[target]:
                    by_target.setdefault(target, []).extend(sets[group])
            self._after[state] = {
                target: terminals.chars(normalize(ranges), encoded=encoded)
                for target, ranges in by_target.items()
            }
            if dfa.accepts[state]:
                self._after[state][-2] = terminals.literal("")
        self._before: dict[int, set[int]] = {state: set() for state in self._after}
        for state, edges in self._after.items():
            for target in edges:
                self._before[target].add(state)

    def run(self) -> int:
        """Eliminate the states in the order of the edges that this writes."""
        pending = [self._cost(state) for state in self._after if state >= 0]
        heapify(pending)
        while pending:
            cost = heappop(pending)
            state = -cost[1]
            if state not in self._after or cost != self._cost(state):
                continue  # its current cost is in the heap, too
            for changed in self._eliminate(state):
                if changed >= 0:
                    heappush(pending, self._cost(changed))
        return self._after[-1][-2]

    def _cost(self, state: int) -> tuple[int, int]:
        return len(self._before[state]) * len(self._after[state]), -state

    def _eliminate(self, state: int) -> set[int]:
        """Join the edges around a state; return its neighbours."""
        edges = self._after.pop(state)
        before = self._before.pop(state)
        loop = edges.pop(state, None)
        before.discard(state)
        around = [] if loop is None else [self._terminals.repeat(loop, 0, None)]
        for target in edges:
            self._before[target].discard(state)
        empty = self._terminals.literal("")
        for source in before:
            first = self._after[source].pop(state)
            for target, last in edges.items():
                self._num_edges += 1
                if self._num_edges > _MAX_EDGES:
                    raise TooLargeError
                parts = [part for part in (first, *around, last) if part != empty]
                way = self._terminals.seq(*parts) if parts else empty
                known = self._after[source].get(target)
                self._after[source][target] = (
                    way if known is None else self._terminals.alt(known, way)
                )
                self._before[target].add(source)
        return before | {*edges}


def quote(text: str) -> str:
    """Return a text as a regex in llguidance's syntax."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _class(ranges: Ranges) -> str:
    def point(code: int) -> str:
        character = chr(code)
        return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"

    return (
        "["
        + "".join(
            point(low) if low == high else f"{point(low)}-{point(high)}" for low, high in ranges
        )
        + "]"
    )


@lru_cache(maxsize=4096)
def _encoded(ranges: Ranges) -> str:
    """Return the regex of a character of a set as JSON strings may write it."""
    ways = []
    if bare := intersect(ranges, _BARE):
        ways.append(_class(bare))
    ways += [
        escape for character, escape in _ESCAPED.items() if intersect(ranges, of_text(character))
    ]
    plane = intersect(ranges, ((0, 0xFFFF),))
    if plane:
        ways.append(r"\\u" + _hex(plane, 4))
    by_low: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for low, high in intersect(ranges, ((0x10000, 0x10FFFF),)):
        for first, last, part in _by_high_surrogate(low - 0x10000, high - 0x10000):
            by_low.setdefault(part, []).append((0xD800 + first, 0xD800 + last))
    ways += [rf"\\u{_hex(sorted(highs), 4)}\\u{_hex(part, 4)}" for part, highs in by_low.items()]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _by_high_surrogate(
    low: int, high: int
) -> Iterable[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Yield the first and last high surrogate, and the ranges of low ones, of 20-bit numbers."""
    whole = ((0xDC00, 0xDFFF),)
    first = low >> 10
    last = high >> 10
    if first == last:
        yield first, first, ((0xDC00 + (low & 0x3FF), 0xDC00 + (high & 0x3FF)),)
        return
    if low & 0x3FF:
        yield first, first, ((0xDC00 + (low & 0x3FF), 0xDFFF),)
        first += 1
    if high & 0x3FF != 0x3FF:
        yield last, last, ((0xDC00, 0xDC00 + (high & 0x3FF)),)
        last -= 1
    if first <= last:
        yield first, last, whole


def _hex(ranges: Iterable[tuple[int, int]], digits: int) -> str:
    """Return the regex of numbers in some ranges, in hexadecimal digits of either case."""
    found = _hex_ways(tuple(ranges), digits)
    return found or ""


def _hex_ways(ranges: tuple[tuple[int, int], ...], digits: int) -> str | None:
    if not ranges:
        return None
    if digits == 0:
        return ""
    size = 16 ** (digits - 1)
    if ranges == ((0, 16 * size - 1),):
        return f"[0-9a-fA-F]{{{digits}}}"
    groups: dict[str, list[int]] = {}
    for digit in range(16):
        inner = tuple(
            (
                max(low, digit * size) - digit * size,
                min(high, digit * size + size - 1) - digit * size,
            )
            for low, high in ranges
            if low < digit * size + size and high >= digit * size
        )
        rest = _hex_ways(_joined(inner), digits - 1)
        if rest is not None:
            groups.setdefault(rest, []).append(digit)
    ways = [f"[{''.join(map(_either_case, members))}]{rest}" for rest, members in groups.items()]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _joined(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _either_case(digit: int) -> str:
    character = _HEX[digit]
    return character + character.upper() if character.isalpha() else character
