"""Estimates how much a tokenizer's regular expression may backtrack.

The tokenizers library matches Oniguruma's syntax by backtracking, and a match cannot be stopped. An
expression of an untrusted file must therefore have few ways to match at one position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_WAYS: Final = 100_000
"""Limit of the ways to match at one position, not counting the lengths of loops."""
MAX_LOOPS: Final = 3
"""Limit of loops in a row; work at one position grows with that power of the text's length."""
MAX_LENGTH: Final = 100_000
MAX_DEPTH: Final = 64
SHORT: Final = 16
"""A repeat up to this often counts its lengths as ways; a longer one is a loop."""
_ENDLESS: Final = 1 << 30
_COUNTS: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_NAME: Final = re.compile(r"<[A-Za-z_]\w*>|P<[A-Za-z_]\w*>")
_FLAGS: Final = re.compile(r"[im-]*[:)]")
_CLASS_ESCAPE: Final = re.compile(
    r"[pP]\{[^{}]*\}|x\{[^{}]*\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.", re.S
)
_LOOKAROUNDS: Final = ("=", "!", "<=", "<!", ">", ":")


class CostlyRegexError(ValueError):
    """An expression that may take more than polynomial work, or that cannot be read."""


@dataclass(slots=True)
class _Cost:
    ways: int = 1
    loops: int = 0

    @property
    def is_rigid(self) -> bool:
        """Whether it matches in one way only, so that a loop of it does not multiply ways."""
        return self.ways == 1 and not self.loops


def check_regex(text: str) -> None:
    """Raise `CostlyRegexError` for an expression that may take exponential work."""
    if len(text) > MAX_LENGTH:
        raise CostlyRegexError(f"{len(text)} characters, more than {MAX_LENGTH}")
    reader = _Reader(text)
    reader.alternatives(0)
    if not reader.is_done:
        raise CostlyRegexError("an unmatched closing bracket")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._text)

    def alternatives(self, depth: int) -> _Cost:
        """Read up to the end of the group; ways of alternatives add up."""
        if depth > MAX_DEPTH:
            raise CostlyRegexError(f"groups nested deeper than {MAX_DEPTH}")
        found = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            other = self._sequence(depth)
            found = _checked(_Cost(found.ways + other.ways, max(found.loops, other.loops)))
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _sequence(self, depth: int) -> _Cost:
        whole = _Cost()
        while (character := self._peek()) and character not in "|)":
            part = self._repeated(self._atom(character, depth))
            whole = _checked(_Cost(whole.ways * part.ways, whole.loops + part.loops))
        return whole

    def _repeated(self, atom: _Cost) -> _Cost:
        while (counts := self._counts()) is not None:
            low, high = counts
            if low == high and high <= SHORT:
                atom = _Cost(_power(atom.ways, high), atom.loops * high)
            elif high == 1:
                atom = _Cost(atom.ways + 1, atom.loops)
            elif high <= SHORT:
                ways = sum(_power(atom.ways, count) for count in range(low, high + 1))
                atom = _Cost(ways, atom.loops * high)
            elif atom.is_rigid:
                atom = _Cost(1, 1)
            else:
                raise CostlyRegexError("a repeat of a part that matches in several ways")
            _checked(atom)
        return atom

    def _counts(self) -> tuple[int, int] | None:
        """Read a quantifier with its suffixes; None: there is none."""
        character = self._peek()
        low = 0
        high = _ENDLESS
        if character and character in "*+?":
            self._at += 1
            low = int(character == "+")
            high = 1 if character == "?" else _ENDLESS
        elif (found := _COUNTS.match(self._text, self._at)) and (found[1] or found[3]):
            self._at = found.end()
            low = int(found[1] or 0)
            high = int(found[3] or _ENDLESS) if found[2] else low
        else:
            return None
        if self._peek() == "?" or (character in "*+?" and self._peek() == "+"):
            self._at += 1  # lazy or possessive
        return min(low, high), max(low, high)

    def _atom(self, character: str, depth: int) -> _Cost:
        self._at += 1
        if character == "(":
            return self._group(depth)
        if character == "[":
            self._class(depth)
        elif character == "\\":
            self._escape()
        return _Cost()

    def _escape(self) -> None:
        if self._peek() and self._peek() in "123456789kg":
            raise CostlyRegexError("a backreference or subexpression call")
        found = _CLASS_ESCAPE.match(self._text, self._at)
        if found is None:
            raise CostlyRegexError("a backslash at the end")
        self._at = found.end()

    def _class(self, depth: int) -> None:
        """Read a character class, classes in it included."""
        if depth > MAX_DEPTH:
            raise CostlyRegexError(f"classes nested deeper than {MAX_DEPTH}")
        if self._peek() == "^":
            self._at += 1
        is_first = True
        while True:
            character = self._peek()
            self._at += 1
            if not character:
                raise CostlyRegexError("a character class without an end")
            if character == "]" and not is_first:
                return
            if character == "[":
                self._class(depth + 1)
            elif character == "\\":
                self._at += 1
            is_first = False

    def _group(self, depth: int) -> _Cost:
        if self._peek() == "?":
            self._at += 1
            rest = self._text[self._at : self._at + 2]
            prefix = next((each for each in _LOOKAROUNDS if rest.startswith(each)), None)
            named = _NAME.match(self._text, self._at)
            flags = _FLAGS.match(self._text, self._at)
            if prefix is not None:
                self._at += len(prefix)
            elif named is not None:
                self._at = named.end()
            elif flags is not None:
                self._at = flags.end()
                if flags[0].endswith(")"):
                    return self.alternatives(depth + 1)  # the flags hold up to the group's end
            else:
                raise CostlyRegexError(f"the group (?{rest}")
        found = self.alternatives(depth + 1)
        if self._peek() != ")":
            raise CostlyRegexError("a group without an end")
        self._at += 1
        return found


def _power(ways: int, count: int) -> int:
    return 1 if ways == 1 else min(MAX_WAYS + 1, ways ** min(count, 32))


def _checked(cost: _Cost) -> _Cost:
    if cost.ways > MAX_WAYS:
        raise CostlyRegexError(f"more than {MAX_WAYS} ways to match")
    if cost.loops > MAX_LOOPS:
        raise CostlyRegexError(f"more than {MAX_LOOPS} loops in a row")
    return cost
