"""Where tokens stood before: what `ngram` and `suffix` look up.

Grows with each token by a constant, whatever the context.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.api import DraftRow
    from core.step import NewRow

PLACES: Final = 16
"""Most recent places that are compared; earlier ones of the same few tokens are passed over."""


class Index:
    """Where the tokens of a text stand.

    A new token is entered once, and a look compares a bounded number of places.
    """

    __slots__ = ("_levels", "tokens")

    def __init__(self, *least: int) -> None:
        """`least` tokens must agree for a place to be found; of several numbers, rising, the
        largest that is found counts.

        One is enough for a text. In many texts the latest places of a few tokens are seldom those
        that agree longest.
        """
        self.tokens = array("i")  # slices of arrays are compared at once
        self._levels = [_Level(count) for count in reversed(least)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Enter tokens behind those known.

        What ends with the very last one is entered with the next.
        """
        self.tokens.extend(tokens)
        for level in self._levels:
            level.enter(self.tokens)

    def longest(self, text: array[int], most: int, enough: int) -> tuple[int, list[int]]:
        """Return how many tokens before a place agree with the end of `text`, `most` at most, and
        the places where as many do.

        Latest first, no more than `enough`; (0, []) where there are none. Slices are compared, so
        that it costs hardly more where much agrees.
        """
        for level in self._levels:
            place = level.latest.get(tuple(text[-level.least :]), -1)
            if place >= 0 and (level.least <= most or level is self._levels[-1]):
                longest, found = self._compare(level, place, text, most, enough)
                if found:
                    return longest, found[:enough]
        return 0, []

    def _compare(
        self, level: _Level, place: int, text: array[int], most: int, enough: int
    ) -> tuple[int, list[int]]:
        tokens = self.tokens
        end = len(text)
        longest = level.least
        before = level.before
        tail = text[-longest:]
        found = list[int]()
        for _ in range(PLACES):
            if place < 0 or (longest == most and len(found) == enough):
                break
            if place >= longest and tokens[place - longest : place] == tail:
                if longest < most and (agree := self._agree(text, place, longest, most)) > longest:
                    longest = agree
                    tail = text[end - agree :]
                    found = []
                found.append(place)
            place = before[place]
        return longest, found

    def _agree(self, text: array[int], place: int, least: int, most: int) -> int:
        """Return how many tokens before a place agree with the end of `text`, of which `least` do."""
        tokens = self.tokens
        end = len(text)
        agree = least
        most = min(most, place, end)
        more = most - agree
        while more > 0:  # all the rest, or half of it, and so on
            if (
                tokens[place - agree - more : place - agree]
                == text[end - agree - more : end - agree]
            ):
                agree += more
                more = min(more, most - agree)
            else:
                more //= 2
        return agree


class _Level:
    """Places by the same number of tokens before them."""

    __slots__ = ("before", "latest", "least")

    def __init__(self, least: int) -> None:
        self.least = least
        self.latest: dict[tuple[int, ...], int] = {}
        """Tokens to the place behind their latest occurrence ..."""
        self.before: list[int] = []
        """... and by place, that behind the occurrence before; -1: there is none."""

    def enter(self, tokens: array[int]) -> None:
        """Take in the tokens that are new."""
        latest = self.latest
        before = self.before
        least = self.least
        for place in range(len(before), len(tokens)):
            if place < least:
                before.append(-1)
                continue
            gram = tuple(tokens[place - least : place])
            before.append(latest.get(gram, -1))
            latest[gram] = place


class Texts:
    """The index of each row's request."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._indices: dict[int, tuple[NewRow, Index]] = {}

    def of(self, asked: DraftRow) -> Index:
        """Return the index of a row's request, with all of its tokens in it."""
        owner, index = self._indices.get(asked.row, (None, None))
        if index is None or owner is not asked.owner:
            index = Index(self._least)
            self._indices[asked.row] = asked.owner, index
        index.extend(asked.tokens[len(index.tokens) :].tolist())
        return index

    def leaving(self, asked: DraftRow) -> tuple[NewRow, Index] | None:
        """Return who had the row until now, and the index, where it is another request."""
        known = self._indices.get(asked.row)
        return known if known is not None and known[0] is not asked.owner else None
