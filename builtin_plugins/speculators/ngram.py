"""Prompt lookup: what followed the last tokens where they stood before is guessed to follow again.

Needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builtin_plugins.speculators.index import Texts

if TYPE_CHECKING:
    from core.api import DraftRow, EngineConfig, Registry, SpeculativeConfig


class NGram:
    """Looks into each request's own prompt and output."""

    finds = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        least, self._most = settings.lookup
        self._texts = Texts(least)

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return what is found for each row."""
        return [self._draft(each) for each in rows]

    def _draft(self, asked: DraftRow) -> list[int]:
        """Return what followed the longest agreeing end of the text, the latest time it stood
        there.

        Where that is so near that the text ends first, it goes on with what is guessed: a text that
        repeats itself.
        """
        tokens = (index := self._texts.of(asked)).tokens
        _, places = index.longest(tokens, self._most, 1)
        if not places:
            return []
        best = places[0]
        period = len(tokens) - best
        return [tokens[best + ahead % period] for ahead in range(asked.most)]
