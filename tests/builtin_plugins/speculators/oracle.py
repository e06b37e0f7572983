"""Speculators that know the expected tokens and corrupt some, so all accepted lengths occur."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig, TokenTree
from core.api import EngineConfig, Entry, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    return [
        Entry("oracle", f"{__name__}:Oracle", "the expected tokens, some corrupted"),
        Entry(
            "forest",
            f"{__name__}:Forest",
            "the expected tokens on a random path of a tree",
        ),
        Entry("likely", f"{__name__}:Likely", "one of a few tokens"),
        Entry("thicket", f"{__name__}:Thicket", "trees of a few tokens"),
    ]


class Oracle:
    """Reads `model`: a file of all token ids of each request, prompt and output."""

    is_lookup = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._texts: list[list[int]] = json.loads(Path(settings.model).read_text())

    def propose(self, rows: list[DraftRow]) -> list[list[int]]:
        drafts = []
        for each in rows:
            tokens = each.tokens.tolist()
            count = len(tokens)
            text = next((text for text in self._texts if text[:count] == tokens), [])
            draft = text[count : count + (7 * count) % (each.max_draft_tokens + 1)]
            wrong = (5 * count) % 11
            if wrong < len(draft):
                draft[wrong] = (draft[wrong] + 1) % 3
            drafts.append(draft)
        return drafts


class Forest:
    """Like `Oracle`, but on a random path of a tree with random other nodes."""

    is_lookup = False
    supports_trees = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._texts: list[list[int]] = json.loads(Path(settings.model).read_text())
        self._random = Random(5)

    def propose(self, rows: list[DraftRow]) -> list[list[int]]:
        return [self._draft(each) for each in rows]

    def _draft(self, row: DraftRow) -> list[int]:
        draw = self._random
        tree = row.tree or TokenTree.chain(row.max_draft_tokens)
        tokens = row.tokens.tolist()
        count = len(tokens)
        text = next((text for text in self._texts if text[:count] == tokens), [])
        draft = [draw.choice(text or tokens) for _ in tree.nodes]  # siblings may be equal
        path = draw.choice(tree.paths)
        for node, token in zip(path[: draw.randrange(len(path) + 1)], text[count:], strict=False):
            draft[node - 1] = token
        if draw.random() < 0.05:
            draft[draw.randrange(len(draft))] = 1 << 40
        return draft


class Likely:
    """Drafts random tokens of the list `model`: many are accepted, many rejected."""

    is_lookup = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._tokens: list[int] = json.loads(settings.model)
        self._random = Random(3)

    def propose(self, rows: list[DraftRow]) -> list[list[int]]:
        return [self._random.choices(self._tokens, k=each.max_draft_tokens) for each in rows]


class Thicket(Likely):
    """`Likely`, with trees."""

    is_lookup = False
    supports_trees = True
