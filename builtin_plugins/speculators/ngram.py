"""Method `ngram` (prompt lookup): drafts what followed the last tokens at their latest occurrence.

The index of a text grows by a constant with each token, whatever the context length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow, SpeculativeConfig
    from core.api import EngineConfig, Registry
    from core.api.execution import NewRow

MAX_CANDIDATES: Final = 16
"""Latest occurrences of an n-gram that are compared; earlier ones are ignored."""


class TokenIndex:
    """Occurrences of n-grams in a text. A lookup compares a bounded number of them."""

    __slots__ = ("_levels", "tokens")

    def __init__(self, *ngram_sizes: int) -> None:
        """`ngram_sizes`: rising. A lookup uses the largest that occurs.

        One size is enough for one text. With many texts, the latest occurrences of a small n-gram
        are rarely those with the longest match.
        """
        self.tokens = array("i")  # array slices compare fast
        self._levels = [_NGramLevel(size) for size in reversed(ngram_sizes)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens. N-grams that end with the last token are indexed with the next one."""
        self.tokens.extend(tokens)
        for level in self._levels:
            level.extend(self.tokens)

    def longest(self, text: array[int], max_length: int, max_matches: int) -> tuple[int, list[int]]:
        """Return the longest match of the end of `text`, and the positions after it.

        Its length is up to `max_length`. Positions are latest first, up to `max_matches`; none:
        (0, []). Slices are compared, so that long matches cost little more.
        """
        for level in self._levels:
            position = level.latest.get(tuple(text[-level.size :]), -1)
            is_allowed = level.size <= max_length or level is self._levels[-1]
            if position >= 0 and is_allowed:
                length, found = self._compare(level, position, text, max_length, max_matches)
                if found:
                    return length, found[:max_matches]
        return 0, []

    def _compare(
        self,
        level: _NGramLevel,
        position: int,
        text: array[int],
        max_length: int,
        max_matches: int,
    ) -> tuple[int, list[int]]:
        tokens = self.tokens
        end = len(text)
        longest = level.size
        previous = level.previous
        tail = text[-longest:]
        found = list[int]()
        for _ in range(MAX_CANDIDATES):
            if position < 0 or (longest == max_length and len(found) == max_matches):
                break
            if position >= longest and tokens[position - longest : position] == tail:
                if longest < max_length:
                    length = self._match_length(text, position, longest, max_length)
                    if length > longest:
                        longest = length
                        tail = text[end - length :]
                        found = []
                found.append(position)
            position = previous[position]
        return longest, found

    def _match_length(
        self, text: array[int], position: int, min_length: int, max_length: int
    ) -> int:
        """Return how many tokens before a position match the end of `text`.

        At least `min_length` do.
        """
        tokens = self.tokens
        end = len(text)
        length = min_length
        max_length = min(max_length, position, end)
        step = max_length - length
        while step > 0:  # try all remaining tokens, then half of them, and so on
            if (
                tokens[position - length - step : position - length]
                == text[end - length - step : end - length]
            ):
                length += step
                step = min(step, max_length - length)
            else:
                step //= 2
        return length


class _NGramLevel:
    """Occurrences of n-grams of one size."""

    __slots__ = ("latest", "previous", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.latest: dict[tuple[int, ...], int] = {}
        """Position after the latest occurrence, by n-gram."""
        self.previous: list[int] = []
        """Position after the previous occurrence, by position; -1: none."""

    def extend(self, tokens: array[int]) -> None:
        """Index the tokens that are new."""
        latest = self.latest
        previous = self.previous
        size = self.size
        for position in range(len(previous), len(tokens)):
            if position < size:
                previous.append(-1)
                continue
            ngram = tuple(tokens[position - size : position])
            previous.append(latest.get(ngram, -1))
            latest[ngram] = position


class RequestIndexes:
    """The token index of each row's request."""

    def __init__(self, ngram_size: int) -> None:
        self._ngram_size = ngram_size
        self._indexes: dict[int, tuple[NewRow, TokenIndex]] = {}

    def index_of(self, row: DraftRow) -> TokenIndex:
        """Return the index of a row's request, with all its tokens."""
        owner, index = self._indexes.get(row.row, (None, None))
        if index is None or owner is not row.owner:
            index = TokenIndex(self._ngram_size)
            self._indexes[row.row] = row.owner, index
        index.extend(row.tokens[len(index.tokens) :].tolist())
        return index

    def previous_of(self, row: DraftRow) -> tuple[NewRow, TokenIndex] | None:
        """Return the row's previous request and its index; None: the request is the same."""
        known = self._indexes.get(row.row)
        return known if known is not None and known[0] is not row.owner else None


class NGram:
    """Searches each request's own prompt and output."""

    is_lookup = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        ngram_size, self._max_length = settings.lookup
        self._indexes = RequestIndexes(ngram_size)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the draft of each row; empty without a match."""
        return [self._draft(row) for row in rows]

    def _draft(self, row: DraftRow) -> list[int]:
        """Return what followed the longest match.

        If the text ends before the draft is full, the draft repeats, as a repetitive text would.
        """
        index = self._indexes.index_of(row)
        tokens = index.tokens
        _, positions = index.longest(tokens, self._max_length, 1)
        if not positions:
            return []
        start = positions[0]
        period = len(tokens) - start
        return [tokens[start + offset % period] for offset in range(row.max_draft_tokens)]
