"""Where tokens stood before: what `ngram` and `suffix` look up. Grows with each token by a constant, whatever the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.api import DraftRow
    from core.step import NewRow

PLACES: Final = 16
"""Most recent places that are compared; earlier ones of the same few tokens are passed over."""


class Index:
    """Where the tokens of a text stand. A new token is entered once, and a look compares a bounded number of places."""

    __slots__ = ("_before", "_latest", "_least", "tokens")

    def __init__(self, least: int) -> None:
        """`least` tokens must agree for a place to be found."""
        self._least = least
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        """Tokens to the place behind their latest occurrence ..."""
        self._before: list[int] = []
        """... and by place, that behind the occurrence before; -1: there is none."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Enter tokens behind those known. What ends with the very last one is entered with the next."""
        own, latest, before, least = self.tokens, self._latest, self._before, self._least
        own += tokens
        for place in range(len(before), len(own)):
            if place < least:
                before.append(-1)
                continue
            gram = tuple(own[place - least : place])
            before.append(latest.get(gram, -1))
            latest[gram] = place

    def places(self, text: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
        """Yield (place, agreeing tokens before it, `most` at most) where the end of `text` stands, latest first."""
        tokens, end, least = self.tokens, len(text), self._least
        place = self._latest.get(tuple(text[end - least :]), -1) if end >= least else -1
        for _ in range(PLACES):
            if place < 0:
                return
            agree, possible = least, min(most, place, end)
            while agree < possible and tokens[place - agree - 1] == text[end - agree - 1]:
                agree += 1
            yield place, agree
            place = self._before[place]


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
