"""Medusa: a head for each of the next tokens, all of which read the model's hidden state behind the
last token but one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from builtin_plugins.speculators.heads import Heads
from builtin_plugins.speculators.trees import likely_tokens
from core.api import ConfigError, LayerKV, TokenTree
from core.models.layers.embedding import Head
from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api import BuildContext, DecoderSpec, DraftRow
    from core.contracts.scheduling import LoadedParts
    from core.models.layers.decoder import Decoder

RENAME: Final = (
    (r"^medusa_heads?\.", ""),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.(?:linear\.)?", r"\1.\2.linear."),
    (r"^lm_heads\.(\d+)\.", r"\1.head."),
)
"""Other names that checkpoints give to the same; where the product of a head stands, the number of
its layers says.
"""


class Medusa(Heads):
    """Guesses as many tokens as there are heads."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, _ = self._checkpoint()
        stored = self._stored(source)
        self._head = MedusaHead(stored, self._target, parts.context)
        self._fill(self._head.weights, source)
        if self._head.vocab_size > self._target.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r} has {self._head.vocab_size} tokens, "
                "the model "
                f"{self._target.vocab_size}: it is a head of another model."
            )
        tree = self._settings.tree
        if tree is not None and max(tree.depths) > self._head.count:
            raise ConfigError(
                f"--speculative-config.speculative_token_tree is {max(tree.depths)} tokens deep; "
                f"{source.name!r} has "
                f"{self._head.count} heads, one for each."
            )
        return []

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return what each head finds most likely."""
        drafts: list[list[int]] = [[] for _ in rows]
        places, hidden = self._last_hidden(rows)
        if hidden is None:
            return drafts
        asked = [rows[place] for place in places]
        nodes = [(each.tree or TokenTree.chain(each.most)).nodes for each in asked]
        deepest = min(max(len(node) for own in nodes for node in own), self._head.count)
        widest = 1 + max(node[-1] for own in nodes for node in own)
        best = likely_tokens(self._head(hidden, deepest), widest).tolist()
        for place, own, likely in zip(places, nodes, best, strict=True):
            drafts[place] = [
                likely[len(node) - 1][node[-1]] for node in own if len(node) <= deepest
            ]
        return drafts


class MedusaHead(nn.Module):
    """Heads of equal shape: products whose activations are added to what they read, then one to the
    vocabulary.

    Of heads that store none, that is the model's. So all of them are two products: one of their
    first layers, and one to the vocabulary of what they make of a hidden state.
    """

    def __init__(
        self,
        stored: Mapping[str, tuple[int, ...]],
        target: Decoder,
        context: BuildContext,
    ) -> None:
        """`stored`: the checkpoint's shapes by name."""
        super().__init__()
        hidden = target.spec.hidden_size
        naming = WeightMap(rename=RENAME)
        shapes = {naming.renamed(name): shape for name, shape in stored.items()}
        places = [
            (int(m[1]), int(m[2]))
            for name in shapes
            if (m := re.match(r"(\d+)\.(\d+)\.linear\.weight$", name))
        ]
        if not places:
            raise ConfigError(
                "--speculative-config.model holds no heads of Medusa: no tensor is called "
                "0.0.linear.weight."
            )
        self.count, num_layers = (1 + max(part) for part in zip(*places, strict=True))
        rename = (*RENAME, (rf"^(\d+)\.{num_layers}\.(weight|bias)$", r"\1.head.\2"))
        naming = WeightMap(rename=rename)
        shapes = {naming.renamed(name): shape for name, shape in stored.items()}
        self.weights = weights = WeightMap(rename=rename)
        width = shapes["0.0.linear.weight"][1]
        if width != hidden:
            raise ConfigError(
                f"--speculative-config.model reads hidden states of {width} numbers, those of the "
                "model "
                f"have {hidden}: it is a head of another model."
            )
        self.vocab_size = shapes.get("0.head.weight", (target.vocab_size,))[0]
        numbers = range(self.count)

        def product(names: Sequence[str]) -> Linear:
            biased = [f"{name}.bias" in shapes for name in names]
            slices = [
                Slice(name, hidden, name, bias=own) for name, own in zip(names, biased, strict=True)
            ]
            return Linear(context, weights, names[0], hidden, slices, bias=any(biased))

        self._first = product([f"{head}.0.linear" for head in numbers])
        self._further = [
            [product([f"{head}.{at}.linear"]) for head in numbers] for at in range(1, num_layers)
        ]
        own = any(name.endswith(".head.weight") for name in shapes)
        self._heads = [
            Head(self.vocab_size, hidden, context, weights, f"{at}.head") for at in numbers if own
        ]
        self._logits = target.logits

    def forward(self, hidden: torch.Tensor, count: int) -> torch.Tensor:
        """Return the logits of the first `count` heads [n, count, vocab]."""
        n, width = hidden.shape
        x = hidden[:, None] + F.silu(self._first(hidden)).view(n, -1, width)[:, :count]
        for layers in self._further:
            made = [layer(part) for layer, part in zip(layers, x.unbind(1), strict=False)]
            x = x + F.silu(torch.stack(made, dim=1))
        if self._heads:
            return torch.stack(
                [head(part) for head, part in zip(self._heads, x.unbind(1), strict=False)], dim=1
            )
        return self._logits(x.reshape(-1, width)).view(n, count, -1)
