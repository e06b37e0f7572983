"""A speculator that was told the answers, and spoils some: every number of right guesses comes up."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from core.api import DraftRow, EngineConfig, Entry, SpeculativeConfig, TokenTree, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    return [
        Entry("oracle", f"{__name__}:Oracle", "knows the answers"),
        Entry(
            "forest",
            f"{__name__}:Forest",
            "knows the answers, and has them on some way through a tree",
        ),
        Entry("likely", f"{__name__}:Likely", "one of a few tokens"),
        Entry("thicket", f"{__name__}:Thicket", "one of a few tokens, several at once"),
    ]


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


class Forest:
    """Reads `model` as `Oracle`; puts the answers on any way through the tree, to its end or not,
    and anything else beside them.
    """

    finds = False
    branches = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._texts: list[list[int]] = json.loads(Path(settings.model).read_text())
        self._random = Random(5)

    def drafts(self, rows: list[DraftRow]) -> list[list[int]]:
        return [self._draft(each) for each in rows]

    def _draft(self, asked: DraftRow) -> list[int]:
        draw = self._random
        tree = asked.tree or TokenTree.chain(asked.most)
        tokens = asked.tokens.tolist()
        count = len(tokens)
        text = next((text for text in self._texts if text[:count] == tokens), [])
        draft = [draw.choice(text or tokens) for _ in tree.nodes]  # siblings may be alike
        path = draw.choice(tree.paths)
        for place, token in zip(path[: draw.randrange(len(path) + 1)], text[count:], strict=False):
            draft[place - 1] = token
        if draw.random() < 0.05:
            draft[draw.randrange(len(draft))] = 1 << 40
        return draft


class Likely:
    """Guesses one of a few tokens, `model` being their list, so that many guesses hold and many do
    not.
    """

    finds = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        self._tokens: list[int] = json.loads(settings.model)
        self._random = Random(3)

    def drafts(self, rows: list[DraftRow]) -> list[list[int]]:
        return [self._random.choices(self._tokens, k=each.most) for each in rows]


class Thicket(Likely):
    """Likewise, several at once where trees are asked for."""

    finds = False
    branches = True
