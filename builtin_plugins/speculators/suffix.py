"""Suffix decoding: tokens are guessed that most often followed the longest agreeing end of the text, in it or in earlier outputs.

Needs no model. Of the places that agree longest the next tokens are counted; the most frequent one is guessed as long as it
followed often enough, and only those places count on that it followed at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from builtin_plugins.speculators.index import Index, Texts

if TYPE_CHECKING:
    from core.api import DraftRow, EngineConfig, Registry, SpeculativeConfig

LEAST: Final = 2
"""Tokens that must agree."""
END: Final = -1
"""Stands behind each output, and is no token."""


class Suffix:
    """Looks into each request's own text, and into outputs of those that had their row before.

    Ranks see rows at different times, so that with several of them only a request's own text is read: they must agree.
    """

    finds = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry) -> None:
        self._depth = settings.suffix_decoding_max_tree_depth
        self._factor, self._share = settings.suffix_decoding_max_spec_factor, settings.suffix_decoding_min_token_prob
        alone = config.parallel.tensor_parallel_size == 1
        self._remembered = settings.suffix_decoding_max_cached_requests if alone else 0
        self._texts = Texts(LEAST)
        self._earlier, self._latest, self._num_latest = Index(LEAST), Index(LEAST), 0
        """Outputs in two generations: when the later one is full, the earlier one is forgotten."""

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return what is found for each row."""
        for asked in rows:
            self._remember(asked)
        return [self._draft(asked) for asked in rows]

    def _remember(self, asked: DraftRow) -> None:
        """Keep the output of who had the row before, if that is another request."""
        left = self._texts.leaving(asked)
        if left is None or not self._remembered:
            return
        if 2 * self._num_latest >= self._remembered:
            self._earlier, self._latest, self._num_latest = self._latest, Index(LEAST), 0
        owner, index = left
        self._latest.extend([*index.tokens[owner.prompt_len :], END])
        self._num_latest += 1

    def _draft(self, asked: DraftRow) -> list[int]:
        text = self._texts.of(asked)
        found = [
            (agree, index.tokens, place)
            for index in (text, self._latest, self._earlier)
            for place, agree in index.places(text.tokens, self._depth)
        ]
        longest = max((agree for agree, _, _ in found), default=0)
        ways = [_following(tokens, place) for agree, tokens, place in found if agree == longest]
        most = min(asked.most, self._depth, int(self._factor * longest))
        draft: list[int] = []
        while ways and len(draft) < most:
            ahead = [(next(way, END), way) for way in ways]
            token, count = Counter(token for token, _ in ahead).most_common(1)[0]
            if token == END or count < self._share * len(ways):
                break
            draft.append(token)
            ways = [way for next_token, way in ahead if next_token == token]
        return draft


def _following(tokens: Sequence[int], place: int) -> Iterator[int]:
    """Yield the tokens from a place on."""
    return (tokens[at] for at in range(place, len(tokens)))
