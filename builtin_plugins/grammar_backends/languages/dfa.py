"""Deterministic automata over text: products, complement, emptiness, minimal form."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from builtin_plugins.grammar_backends.languages.code_points import ALL, Ranges

MAX_STATES: Final = 12_000
"""Maximum number of states of an automaton under construction."""
MAX_EDGES: Final = 2_000_000
"""Maximum number of its states times the classes of its alphabet: about a second."""
_MAX_MINIMIZED: Final = 600
_EDGES: Final = (0, 0xD800, 0xE000)
NO_CLASS: Final = -1
"""Class of surrogates, which are no characters."""

State = TypeVar("State", bound=Hashable)


class TooComplexError(Exception):
    """An automaton exceeds `MAX_STATES` or `MAX_EDGES`."""

    def __init__(self) -> None:
        super().__init__(
            f"needs an automaton of more than {MAX_STATES} states or {MAX_EDGES} edges"
        )


@dataclass(frozen=True, slots=True)
class Alphabet:
    """A partition of all characters into classes that an automaton does not distinguish."""

    cuts: tuple[int, ...]
    """First code point of each interval, from 0."""
    classes: tuple[int, ...]
    """Class of each interval."""
    size: int
    """Number of classes."""

    def class_of(self, code: int) -> int:
        """Return the class of a code point."""
        return self.classes[bisect_right(self.cuts, code) - 1]

    def classes_of(self, ranges: Ranges) -> list[int]:
        """Return the classes that form a set; each is completely inside or outside of it."""
        found: dict[int, None] = {}
        for low, high in ranges:
            at = bisect_right(self.cuts, low) - 1
            while at < len(self.cuts) and self.cuts[at] <= high:
                found[self.classes[at]] = None
                at += 1
        found.pop(NO_CLASS, None)
        return [*found]

    def ranges(self) -> list[Ranges]:
        """Return the set of each class."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        ends = [*(cut - 1 for cut in self.cuts[1:]), 0x10FFFF]
        for low, high, group in zip(self.cuts, ends, self.classes, strict=True):
            if group != NO_CLASS:
                if found[group] and found[group][-1][1] == low - 1:
                    found[group][-1] = (found[group][-1][0], high)
                else:
                    found[group].append((low, high))
        return [tuple(ranges) for ranges in found]


def alphabet_of(sets: Iterable[Ranges]) -> Alphabet:
    """Return the coarsest partition in which each set is a union of classes."""
    distinct = [*dict.fromkeys(sets)]
    changes: dict[int, list[int]] = {cut: [] for cut in _EDGES}
    for index, ranges in enumerate(distinct):
        for low, high in ranges:
            changes.setdefault(low, []).append(index)
            if high < 0x10FFFF:
                changes.setdefault(high + 1, []).append(index)
    cuts = sorted(changes)
    inside: set[int] = set()
    known: dict[frozenset[int], int] = {}
    classes = []
    for cut in cuts:
        for index in changes[cut]:
            inside ^= {index}
        if 0xD800 <= cut < 0xE000:
            classes.append(NO_CLASS)
        else:
            classes.append(known.setdefault(frozenset(inside), len(known)))
    return Alphabet(tuple(cuts), tuple(classes), len(known))


def _refine(a: Alphabet, b: Alphabet) -> tuple[Alphabet, list[tuple[int, int]]]:
    """Return a common refinement, and the classes of both in each of its classes."""
    cuts = sorted({*a.cuts, *b.cuts})
    pairs: dict[tuple[int, int], int] = {}
    classes = []
    for cut in cuts:
        pair = (a.class_of(cut), b.class_of(cut))
        classes.append(NO_CLASS if NO_CLASS in pair else pairs.setdefault(pair, len(pairs)))
    return Alphabet(tuple(cuts), tuple(classes), len(pairs)), [*pairs]


@dataclass(frozen=True, slots=True, eq=False)
class Dfa:
    """A complete deterministic automaton; state 0 is the start."""

    alphabet: Alphabet
    steps: tuple[tuple[int, ...], ...]
    """Next state by state and class."""
    accepts: tuple[bool, ...]

    def matches(self, text: str) -> bool:
        """Return whether a text is in the language."""
        state = 0
        for character in text:
            group = self.alphabet.class_of(ord(character))
            if group == NO_CLASS:
                return False
            state = self.steps[state][group]
        return self.accepts[state]

    def is_empty(self) -> bool:
        """Return whether no text is in the language."""
        return not any(self.accepts[state] for state in self._reachable())

    def is_universal(self) -> bool:
        """Return whether each text is in the language."""
        return all(self.accepts[state] for state in self._reachable())

    def _reachable(self) -> list[int]:
        seen = {0: None}
        pending = [0]
        while pending:
            for after in self.steps[pending.pop()]:
                if after not in seen:
                    seen[after] = None
                    pending.append(after)
        return [*seen]

    def complement(self) -> Dfa:
        """Return the automaton of all other texts."""
        return Dfa(self.alphabet, self.steps, tuple(not accepts for accepts in self.accepts))

    def live(self) -> list[bool]:
        """Return of each state whether a text of the language may still follow."""
        before: list[list[int]] = [[] for _ in self.steps]
        for state, row in enumerate(self.steps):
            for after in set(row):
                before[after].append(state)
        alive = [*self.accepts]
        pending = [state for state, accepts in enumerate(alive) if accepts]
        while pending:
            for state in before[pending.pop()]:
                if not alive[state]:
                    alive[state] = True
                    pending.append(state)
        return alive

    def has_length(self, low: int, high: int | None) -> bool:
        """Return whether a text of a length in the range is in the language."""
        alive = self.live()
        if not alive[0]:
            return False
        current = frozenset((0,))
        seen: set[frozenset[int]] = set()
        length = 0
        while current and (high is None or length <= high):
            if length >= low:
                if any(self.accepts[state] for state in current):
                    return True
                if current in seen:
                    return False
                seen.add(current)
            current = frozenset(
                after for state in current for after in set(self.steps[state]) if alive[after]
            )
            length += 1
        return False

    def texts(self, limit: int) -> list[str] | None:
        """Return all texts of the language; None if there are more than `limit`."""
        alive = self.live()
        firsts = [[chr(c) for lo, hi in r for c in range(lo, min(hi, lo + limit) + 1)]
                  for r in self.alphabet.ranges()]  # fmt: skip
        found: list[str] = []
        pending = [(0, "")] if alive[0] else []
        while pending:
            state, text = pending.pop()
            if self.accepts[state]:
                found.append(text)
            if len(found) > limit or len(text) > len(self.steps):
                return None
            for group, after in enumerate(self.steps[state]):
                if alive[after]:
                    pending += [(after, text + character) for character in firsts[group]]
            if len(pending) > 64 * (limit + 1):
                return None
        return sorted(found)


def combine(a: Dfa, b: Dfa, accepts: Callable[[bool, bool], bool]) -> Dfa:
    """Return the minimal automaton of texts for which the combination holds."""
    alphabet, pairs = _refine(a.alphabet, b.alphabet)

    def step(state: tuple[int, int]) -> list[tuple[int, int]]:
        left = a.steps[state[0]]
        right = b.steps[state[1]]
        return [(left[x], right[y]) for x, y in pairs]

    return explore(
        alphabet, (0, 0), step, lambda state: accepts(a.accepts[state[0]], b.accepts[state[1]])
    )


def intersection(a: Dfa, b: Dfa) -> Dfa:
    """Return the automaton of texts in both languages."""
    return combine(a, b, lambda x, y: x and y)


def union(a: Dfa, b: Dfa) -> Dfa:
    """Return the automaton of texts in one of the languages."""
    return combine(a, b, lambda x, y: x or y)


def difference(a: Dfa, b: Dfa) -> Dfa:
    """Return the automaton of texts in the first language only."""
    return combine(a, b, lambda x, y: x and not y)


def explore(
    alphabet: Alphabet,
    start: State,
    step: Callable[[State], Sequence[State]],
    accepts: Callable[[State], bool],
) -> Dfa:
    """Return the minimal automaton of a transition function; `step` gives one state per class.

    Raises `TooComplexError`.
    """
    numbers = {start: 0}
    order = [start]
    steps = []
    for state in order:
        row: list[int] = []
        last: State | None = None
        for after in step(state):
            # Neighbouring classes often lead to one state: comparing is cheaper than hashing.
            if row and after is last:
                row.append(row[-1])
                continue
            last = after
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(order)
                order.append(after)
                if number >= MAX_STATES or number * alphabet.size > MAX_EDGES:
                    raise TooComplexError
            row.append(number)
        steps.append(tuple(row))
    return minimize(Dfa(alphabet, tuple(steps), tuple(accepts(state) for state in order)))


def minimize(dfa: Dfa) -> Dfa:
    """Return the automaton with equivalent states merged (Moore) and classes joined.

    Large automata are returned as they are: for long chains, each round splits off one state.
    """
    steps = dfa.steps
    if len(steps) > _MAX_MINIMIZED:
        return dfa
    block = [int(accepts) for accepts in dfa.accepts]
    count = len(set(block))
    while True:
        keys: dict[tuple[int, ...], int] = {}
        block = [
            keys.setdefault((block[state], *[block[after] for after in row]), len(keys))
            for state, row in enumerate(steps)
        ]
        if len(keys) == count:
            break
        count = len(keys)
    # State 0 is the first to get a number, so its block is 0.
    rows: dict[int, tuple[int, ...]] = {}
    accepts = [False] * count
    for state, number in enumerate(block):
        if number not in rows:
            rows[number] = tuple(block[after] for after in steps[state])
            accepts[number] = dfa.accepts[state]
    ordered = [rows[number] for number in range(count)]
    columns: dict[tuple[int, ...], int] = {}
    joined = [
        columns.setdefault(tuple(row[group] for row in ordered), len(columns))
        for group in range(dfa.alphabet.size)
    ]
    alphabet = Alphabet(
        dfa.alphabet.cuts,
        tuple(NO_CLASS if g == NO_CLASS else joined[g] for g in dfa.alphabet.classes),
        len(columns),
    )
    merged = [*zip(*columns, strict=True)] if columns else [()] * count
    return Dfa(_without_equal_neighbours(alphabet), tuple(merged), tuple(accepts))


def _without_equal_neighbours(alphabet: Alphabet) -> Alphabet:
    keep = [
        i for i, group in enumerate(alphabet.classes) if i == 0 or group != alphabet.classes[i - 1]
    ]
    return Alphabet(
        tuple(alphabet.cuts[i] for i in keep),
        tuple(alphabet.classes[i] for i in keep),
        alphabet.size,
    )


_WHOLE: Final = alphabet_of([ALL])
ANY_TEXT: Final = Dfa(_WHOLE, ((0,),), (True,))
NO_TEXT: Final = Dfa(_WHOLE, ((0,),), (False,))


def of_texts(texts: Iterable[str]) -> Dfa:
    """Return the automaton of a finite set of texts."""
    edges: list[dict[int, int]] = [{}]
    accepting: set[int] = set()
    for text in texts:
        state = 0
        for character in text:
            after = edges[state].get(ord(character))
            if after is None:
                after = edges[state][ord(character)] = len(edges)
                edges.append({})
                if after >= MAX_STATES:
                    raise TooComplexError
            state = after
        accepting.add(state)
    alphabet = alphabet_of(((code, code),) for row in edges for code in row)
    if len(edges) * alphabet.size > MAX_EDGES:
        raise TooComplexError
    dead = len(edges)
    steps = []
    for row in edges:
        line = [dead] * alphabet.size
        for code, after in row.items():
            if (group := alphabet.class_of(code)) != NO_CLASS:
                line[group] = after
        steps.append(tuple(line))
    steps.append((dead,) * alphabet.size)
    accepts = tuple(state in accepting for state in range(dead + 1))
    return minimize(Dfa(alphabet, tuple(steps), accepts))
