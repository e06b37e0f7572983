"""A speculator: drafts repetitions of a token that occurred twice in a row."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig
from core.api import EngineConfig, Registry

EXAMPLES = [([4, 7, 7], 3, [7, 7, 7]), ([4, 7], 3, [])]
"""Tokens so far, maximum number of draft tokens, and the expected drafts."""


class Acme:
    """Stateless drafter."""

    is_lookup = True
    """Whether drafts depend on the tokens: a row may get none."""

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        """Read the settings."""

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the draft tokens of each row, up to `row.max_draft_tokens`."""
        return [_repeat(row.tokens[-2:].tolist()) * row.max_draft_tokens for row in rows]


def _repeat(recent: list[int]) -> list[int]:
    return recent[:1] if len(set(recent)) == 1 < len(recent) else []
