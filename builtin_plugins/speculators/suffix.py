"""Suffix decoding: tokens are guessed that most often followed the longest agreeing end of the
text, in it or in earlier outputs.

Needs no model. Of the places that agree longest the next tokens are counted; the most frequent one
is guessed as long as it followed often enough, and only those places count on that it followed at.
Outputs may be there from the start, in a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from builtin_plugins.speculators.checkpoints import find_checkpoint
from builtin_plugins.speculators.index import Index, Texts
from builtin_plugins.speculators.outputs import END, read_outputs

if TYPE_CHECKING:
    from core.api import DraftRow, EngineConfig, LayerKV, Registry, SpeculativeConfig
    from core.contracts.scheduling import LoadedParts

LEAST: Final = 2
"""Tokens that must agree."""
OTHERS: Final = (LEAST, 5)
"""In outputs of others, of which there are many: the longest that is found counts."""
OWN: Final = 2
"""Tokens that count as agreeing besides where it is the text itself that is found: what it has said
it says again.
"""
CASES: Final = 8
"""Places that are counted where more agree; those of a text itself first."""


class Suffix:
    """Looks into each request's own text, and into outputs of those that had their row before.

    Ranks see rows at different times, so that with several of them only a request's own text is
    read: they must agree.
    """

    finds = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        self._depth = settings.suffix_decoding_max_tree_depth
        self._factor = settings.suffix_decoding_max_spec_factor
        self._share = settings.suffix_decoding_min_token_prob
        alone = config.parallel.tensor_parallel_size == 1
        self._remembered = settings.suffix_decoding_max_cached_requests if alone else 0
        self._texts = Texts(LEAST)
        self._earlier = Index(*OTHERS)
        self._latest = Index(*OTHERS)
        self._num_latest = 0
        """Outputs in two generations: when the later one is full, the earlier one is forgotten."""
        self._given = Index(*OTHERS)
        """Those of the file, which all ranks have."""
        self._find = (
            partial(find_checkpoint, config, settings, registry) if settings.model else None
        )

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Read the outputs that `model` holds. Raises `ConfigError` for those of another model."""
        if self._find is not None:
            self._given.extend(read_outputs(self._find(), parts.model.vocab_size))
        return ()

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
            self._earlier = self._latest
            self._latest = Index(*OTHERS)
            self._num_latest = 0
        owner, index = left
        self._latest.extend(index.tokens[owner.prompt_len :])
        self._latest.extend([END])
        self._num_latest += 1

    def _draft(self, asked: DraftRow) -> list[int]:
        text = self._texts.of(asked)
        longest = 0
        most_alike = 0
        found: list[tuple[array[int], int]] = []
        for index, more in ((text, OWN), (self._latest, 0), (self._earlier, 0), (self._given, 0)):
            if longest == self._depth and len(found) >= CASES:
                break
            agree, places = index.longest(text.tokens, self._depth, CASES)
            if places and agree + more > most_alike:
                longest = agree
                most_alike = agree + more
                found = []
            if places and agree + more == most_alike:
                found += [(index.tokens, place) for place in places]
        most = min(asked.most, self._depth, int(self._factor * longest))
        return _most_followed(
            [tokens[place : place + most] for tokens, place in found[:CASES]], self._share
        )


def _most_followed(ways: Sequence[array[int]], share: float) -> list[int]:
    """Return the token that most of the ways begin with, then that which most of these go on with,
    and so on.

    It ends where fewer than `share` of them go on alike. What all agree in is taken at once.
    """
    draft: list[int] = []
    while ways:
        if ways.count(ways[0]) == len(ways):
            draft += ways[0]
            break
        low = min(ways)
        high = max(ways)
        same = next(
            (at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low)
        )
        draft += low[:same]
        ahead = [way[same] if len(way) > same else END for way in ways]
        token = max(ahead, key=ahead.count)
        if token == END or ahead.count(token) < share * len(ways):
            break
        ways = [way[same:] for way, first in zip(ways, ahead, strict=True) if first == token]
    return draft[: draft.index(END)] if END in draft else draft
