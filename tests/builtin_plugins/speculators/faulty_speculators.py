"""Speculators with invalid drafts or exceptions."""

from __future__ import annotations

import random
from typing import Any

from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig
from core.api import EngineConfig, Entry, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    return [Entry(name, f"{__name__}:{name.capitalize()}", name) for name in ("hostile", "raising")]


class Hostile:
    """Drafts random and invalid tokens, always too many."""

    is_lookup = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._random = random.Random(5)

    def propose(self, rows: list[DraftRow]) -> list[list[int]]:
        draw = self._random
        ends = (-1, 1 << 40, 3071)
        known = [each.tokens.tolist() for each in rows]
        return [
            draw.choices(tokens, k=draw.randrange(9)) + [draw.choice(ends)] * 9 for tokens in known
        ]


class Raising:
    """Always raises."""

    is_lookup = False

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        pass

    def propose(self, rows: list[DraftRow]) -> Any:
        raise ValueError("no idea")
