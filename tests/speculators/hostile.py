"""Speculators that do their worst."""

from __future__ import annotations

import random
from typing import Any

from core.api import DraftRow, EngineConfig, Entry, SpeculativeConfig, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    return [Entry(name, f"{__name__}:{name.capitalize()}", name) for name in ("hostile", "raising")]


class Hostile:
    """Guesses anything that the text has, always too much, and what is no token."""

    finds = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._random = random.Random(5)

    def drafts(self, rows: list[DraftRow]) -> list[list[int]]:
        draw = self._random
        ends = (-1, 1 << 40, 3071)
        known = [each.tokens.tolist() for each in rows]
        return [
            draw.choices(tokens, k=draw.randrange(9)) + [draw.choice(ends)] * 9 for tokens in known
        ]


class Raising:
    """Has a fault."""

    finds = False

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        pass

    def drafts(self, rows: list[DraftRow]) -> Any:
        raise ValueError("no idea")
