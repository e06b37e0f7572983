"""Medusa: a head for each of the next tokens, all of which read the model's hidden state behind the last token but one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from builtin_plugins.speculators.heads import Heads
from builtin_plugins.speculators.trees import Grown, fill, likely_tokens
from core.api import ConfigError, LayerKV
from core.nn.embedding import Head
from core.nn.linear import Linear, Slice
from core.nn.weights import WeightMap

if TYPE_CHECKING:
    from core.api import BuildContext, DecoderSpec, DraftRow
    from core.contracts.scheduling import LoadedParts

RENAME: Final = (
    (r"^medusa_heads?\.", ""),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.(?:linear\.)?", r"\1.\2.linear."),
    (r"^lm_heads\.(\d+)\.", r"\1.head."),
)
"""Other names that checkpoints give to the same; where the product of a head stands, the number of its layers says."""


class Medusa(Heads):
    """Guesses as many tokens as there are heads."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, _ = self._checkpoint()
        stored = self._stored(source)
        self._head = MedusaHead(stored, spec, parts.context)
        self._fill(self._head.weights, source)
        if self._head.vocab_size > self._target.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r} has {self._head.vocab_size} tokens, the model "
                f"{self._target.vocab_size}: it is a head of another model."
            )
        tree = self._settings.tree
        if tree is not None and max(tree.depths) > len(self._head.heads):
            raise ConfigError(
                f"--speculative-config.speculative_token_tree is {max(tree.depths)} tokens deep; {source.name!r} has "
                f"{len(self._head.heads)} heads, one for each."
            )
        return []

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return what each head finds most likely."""
        drafts: list[list[int]] = [[] for _ in rows]
        places, hidden = self._last_hidden(rows)
        if hidden is None:
            return drafts
        asked = [replace(rows[place], most=min(rows[place].most, self._deepest(rows[place]))) for place in places]
        found = self._head(hidden)

        def begin(count: int) -> list[list[int]]:
            best: list[list[int]] = likely_tokens(next(found), count).tolist()
            return best

        def go_on(level: list[Grown], tokens: list[list[int]], count: int) -> list[list[int]]:
            best = begin(count)
            return [best[node.row] for node in level]

        for place, draft in zip(places, fill(asked, begin, go_on), strict=True):
            drafts[place] = draft
        return drafts

    def _deepest(self, asked: DraftRow) -> int:
        return asked.most if asked.tree is not None else len(self._head.heads)


class MedusaHead(nn.Module):
    """Heads of equal shape: products whose activations are added to what they read, then one to the vocabulary."""

    def __init__(self, stored: Mapping[str, tuple[int, ...]], spec: DecoderSpec, context: BuildContext) -> None:
        """`stored`: the checkpoint's shapes by name."""
        super().__init__()
        hidden = spec.hidden_size
        naming = WeightMap(rename=RENAME)
        shapes = {naming.renamed(name): shape for name, shape in stored.items()}
        places = [(int(m[1]), int(m[2])) for name in shapes if (m := re.match(r"(\d+)\.(\d+)\.linear\.weight$", name))]
        if not places:
            raise ConfigError(
                "--speculative-config.model holds no heads of Medusa: no tensor is called 0.0.linear.weight."
            )
        num_heads, num_layers = (1 + max(part) for part in zip(*places, strict=True))
        rename = (*RENAME, (rf"^(\d+)\.{num_layers}\.(weight|bias)$", r"\1.head.\2"))
        naming = WeightMap(rename=rename)
        shapes = {naming.renamed(name): shape for name, shape in stored.items()}
        self.weights = weights = WeightMap(rename=rename)
        self.vocab_size = shapes["0.head.weight"][0]
        if shapes["0.head.weight"][1] != hidden:
            raise ConfigError(
                f"--speculative-config.model reads hidden states of {shapes['0.head.weight'][1]} numbers, those of the model "
                f"have {hidden}: it is a head of another model."
            )

        def product(name: str) -> Linear:
            return Linear(context, weights, name, hidden, [Slice("out", hidden)], bias=f"{name}.bias" in shapes)

        self._layers = [[product(f"{head}.{at}.linear") for at in range(num_layers)] for head in range(num_heads)]
        self.heads = nn.ModuleList(
            Head(self.vocab_size, hidden, context, weights, f"{head}.head") for head in range(num_heads)
        )

    def forward(self, hidden: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the logits of each head [n, vocab]."""
        for layers, head in zip(self._layers, self.heads, strict=True):
            x = hidden
            for layer in layers:
                x = x + F.silu(layer(x))
            yield head(x)
