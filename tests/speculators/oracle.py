"""A speculator that was told the answers, and spoils some: every number of right guesses comes up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.api import DraftRow, EngineConfig, Entry, SpeculativeConfig, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    return [Entry("oracle", f"{__name__}:Oracle", "knows the answers")]


class Oracle:
    """Reads `model`: a file of all token ids of each request, prompt and output."""

    finds = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._texts: list[list[int]] = json.loads(Path(settings.model).read_text())

    def drafts(self, rows: list[DraftRow]) -> list[list[int]]:
        drafts = []
        for each in rows:
            tokens = each.tokens.tolist()
            count = len(tokens)
            text = next((text for text in self._texts if text[:count] == tokens), [])
            draft = text[count : count + (7 * count) % (each.most + 1)]
            wrong = (5 * count) % 11
            if wrong < len(draft):
                draft[wrong] = (draft[wrong] + 1) % 3
            drafts.append(draft)
        return drafts
