"""Matches regular expressions from checkpoint configs in bounded time, as configs are untrusted.

`re` backtracks over alternatives one by one. A pattern with many alternatives is simulated here as
an automaton over positions of the name, in time quadratic in its length.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from core.api import ModelError

MAX_RE_CHOICES: Final = 3
"""Repeats and alternatives of a pattern that `re` may match; none may be nested in a repeat."""
REPEATS: Final = (ops.MAX_REPEAT, ops.MIN_REPEAT)
CATEGORIES: Final[dict[Any, Callable[[str], bool]]] = {
    ops.CATEGORY_DIGIT: str.isdecimal,
    ops.CATEGORY_SPACE: str.isspace,
    ops.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
}
OPPOSITES: Final = {
    ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
    ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
    ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
}


class Pattern:
    """A Python regular expression. Raises `ModelError` if it is invalid or uses a backreference.

    `source`: the config field, named in errors.
    """

    def __init__(self, text: str, source: str = "quantization_config") -> None:
        self._text = text
        self._source = source
        try:
            with warnings.catch_warnings():  # syntax that a later Python may read differently
                warnings.simplefilter("ignore")
                self._tree: Any = parser.parse(text)
                choices = list(_choices(self._tree, inside=False))
                is_quick = len(choices) <= MAX_RE_CHOICES and not any(choices)
                self._quick = re.compile(text) if is_quick else None
        except (re.error, RecursionError, OverflowError) as error:
            raise self._fault(str(error)) from error

    def match(self, name: str) -> bool:
        """Return whether it matches at the beginning of a name."""
        if self._quick is None:
            return bool(self._ends(name, [0]))
        return self._quick.match(name) is not None

    def search(self, name: str) -> bool:
        """Return whether it matches anywhere in a name."""
        if self._quick is None:
            return bool(self._ends(name, range(len(name) + 1)))
        return self._quick.search(name) is not None

    def fullmatch(self, name: str) -> bool:
        """Return whether it matches a whole name."""
        if self._quick is None:
            return len(name) in self._ends(name, [0])
        return self._quick.fullmatch(name) is not None

    def _ends(self, name: str, starts: Iterable[int]) -> set[int]:
        try:
            return _Alternatives(
                name, ignores_case=bool(self._tree.state.flags & re.IGNORECASE)
            ).after(self._tree, set(starts))
        except (NotImplementedError, RecursionError) as error:
            raise self._fault(str(error)) from error

    def _fault(self, reason: str) -> ModelError:
        return ModelError(
            f"{self._source}: got {self._text!r:.80}; expected a supported regular expression "
            f"({reason})."
        )


class _Alternatives:
    """End positions of pattern items in one text, for each start position."""

    def __init__(self, text: str, *, ignores_case: bool) -> None:
        self._text = text
        self._ignores_case = ignores_case
        self._known: dict[tuple[Any, int, int], set[int]] = {}

    def after(self, items: Any, ends: set[int]) -> set[int]:
        """Return the end positions of a sequence of items."""
        for op, facts in items:
            ends = {end for start in ends for end in self._after(op, facts, start)}
            if not ends:
                break
        return ends

    def _after(self, op: Any, facts: Any, at: int) -> set[int]:
        key = op, id(facts), at
        if key not in self._known:
            self._known[key] = self._found(op, facts, at)
        return self._known[key]

    def _found(self, op: Any, facts: Any, at: int) -> set[int]:
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
            if at < len(self._text) and self._fits(op, facts, self._text[at]):
                return {at + 1}
            return set()
        if op is ops.BRANCH:
            return {end for items in facts[1] for end in self.after(items, {at})}
        if op is ops.SUBPATTERN and not (facts[1] or facts[2]):
            return self.after(facts[3], {at})
        if op in REPEATS:
            low, high, items = facts
            return self._repeated(low, high, items, at)
        if op is ops.AT:
            return {at} if self._is_at(facts, at) else set()
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            direction, items = facts
            start = at if direction > 0 else at - items.getwidth()[0]
            ends = self.after(items, {start}) if start >= 0 else set()
            holds = bool(ends) if direction > 0 else at in ends
            return {at} if holds is (op is ops.ASSERT) else set()
        raise NotImplementedError(f"unsupported: {str(op).lower()}")

    def _repeated(self, low: int, high: int, items: Any, at: int) -> set[int]:
        ends = {at}
        for _ in range(low):
            before = ends
            ends = self.after(items, ends)
            if ends == before:  # a fixed point
                break
        found = set(ends)
        for _ in range(high - low):
            ends = self.after(items, ends) - found
            if not ends:
                break
            found |= ends
        return found

    def _is_at(self, what: Any, at: int) -> bool:
        if what in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            return at == 0
        if what in (ops.AT_END, ops.AT_END_STRING):
            return at == len(self._text)
        is_word = CATEGORIES[ops.CATEGORY_WORD]
        sides = [
            0 <= index < len(self._text) and is_word(self._text[index]) for index in (at - 1, at)
        ]
        return (sides[0] != sides[1]) is (what is ops.AT_BOUNDARY)

    def _fits(self, op: Any, facts: Any, char: str) -> bool:
        if op is ops.ANY:
            return char != "\n"
        items = facts if op is ops.IN else [(ops.LITERAL, facts)]
        negated = op is ops.NOT_LITERAL or (op is ops.IN and items[0][0] is ops.NEGATE)
        chars = {char, char.lower(), char.upper()} if self._ignores_case else {char}
        return any(_is_one(item, own) for item in items for own in chars) is not negated


def _is_one(item: tuple[Any, Any], char: str) -> bool:
    """Return whether a character is in the literal, range or category of an item."""
    op, facts = item
    if op is ops.LITERAL:
        return bool(ord(char) == facts)
    if op is ops.RANGE:
        return bool(facts[0] <= ord(char) <= facts[1])
    if op is ops.CATEGORY:
        if facts in OPPOSITES:
            return not CATEGORIES[OPPOSITES[facts]](char)
        return CATEGORIES[facts](char)
    return False


def _choices(items: Any, *, inside: bool) -> Iterable[bool]:
    """Yield, for each repeat and each alternative, whether it is nested in a repeat."""
    for op, facts in items:
        if op in REPEATS or op is ops.POSSESSIVE_REPEAT:
            yield inside
            yield from _choices(facts[2], inside=inside or facts[1] > 1)
        elif op is ops.BRANCH:
            yield inside
            for branch in facts[1]:
                yield from _choices(branch, inside=inside)
        elif op in (ops.SUBPATTERN, ops.ASSERT, ops.ASSERT_NOT):
            yield from _choices(facts[-1], inside=inside)
        elif op is ops.ATOMIC_GROUP:
            yield from _choices(facts, inside=inside)
        elif op in (ops.GROUPREF, ops.GROUPREF_EXISTS):
            yield True
