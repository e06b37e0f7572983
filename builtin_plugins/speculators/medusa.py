"""Medusa: one head for each of the next tokens, all over the same hidden state of the target."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from builtin_plugins.speculators.contract import TokenTree
from builtin_plugins.speculators.draft_trees import top_tokens
from builtin_plugins.speculators.heads import HeadSpeculator
from core.api import ConfigError
from core.model_spec.kv import LayerKV
from core.models.layers.embedding import Head
from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow
    from core.api.execution import LoadedParts
    from core.api.models import BuildContext
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.decoder import Decoder

RENAME: Final = (
    (r"^medusa_heads?\.", ""),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.(?:linear\.)?", r"\1.\2.linear."),
    (r"^lm_heads\.(\d+)\.", r"\1.head."),
)
"""Alternative tensor names of checkpoints. The LM head's index depends on the number of layers."""


class Medusa(HeadSpeculator):
    """Method `medusa`: drafts as many tokens as there are heads."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, _ = self._checkpoint()
        stored = self._stored_shapes(source)
        self._head = MedusaHead(stored, self._target, parts.context)
        self._load_weights(self._head.weights, source)
        if self._head.vocab_size > self._target.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r}: got a vocabulary of "
                f"{self._head.vocab_size} tokens; expected up to {self._target.vocab_size}. Use a "
                "head of this model."
            )
        tree = self._settings.tree
        if tree is not None and max(tree.depths) > self._head.count:
            raise ConfigError(
                "--speculative-config.speculative_token_tree: got a depth of "
                f"{max(tree.depths)}; expected up to {self._head.count}, the heads of "
                f"{source.name!r}."
            )
        return []

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the top tokens of each head."""
        drafts: list[list[int]] = [[] for _ in rows]
        indices, hidden = self._last_hidden(rows)
        if hidden is None:
            return drafts
        trees = [
            rows[index].tree or TokenTree.chain(rows[index].max_draft_tokens) for index in indices
        ]
        max_depth = min(max(max(tree.depths) for tree in trees), self._head.count)
        max_rank = max(node[-1] for tree in trees for node in tree.nodes)
        best = top_tokens(self._head(hidden, max_depth), 1 + max_rank).tolist()
        for index, tree, likely in zip(indices, trees, best, strict=True):
            drafts[index] = [
                likely[len(node) - 1][node[-1]] for node in tree.nodes if len(node) <= max_depth
            ]
        return drafts


class MedusaHead(nn.Module):
    """Medusa heads: residual SiLU layers, then an LM head, which may be the target's.

    The first layers of all heads are one matrix product.
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
        self.count, num_layers = _count_layers(stored)
        rename = (*RENAME, (rf"^(\d+)\.{num_layers}\.(weight|bias)$", r"\1.head.\2"))
        naming = WeightMap(rename=rename)
        shapes = {naming.renamed(name): shape for name, shape in stored.items()}
        self.weights = weights = WeightMap(rename=rename)
        width = shapes["0.0.linear.weight"][1]
        if width != hidden:
            raise ConfigError(
                f"--speculative-config.model: got hidden size {width}; expected the target's "
                f"{hidden}. Use a head of this model."
            )
        self.vocab_size = shapes.get("0.head.weight", (target.vocab_size,))[0]
        heads = range(self.count)

        def linear(names: Sequence[str]) -> Linear:
            biased = [f"{name}.bias" in shapes for name in names]
            slices = [
                Slice(name, hidden, name, bias=has_bias)
                for name, has_bias in zip(names, biased, strict=True)
            ]
            return Linear(context, weights, names[0], hidden, slices, bias=any(biased))

        self._first = linear([f"{head}.0.linear" for head in heads])
        self._deeper = [
            [linear([f"{head}.{layer}.linear"]) for head in heads] for layer in range(1, num_layers)
        ]
        self._heads: list[Head] = []
        if any(name.endswith(".head.weight") for name in shapes):
            self._heads = [
                Head(self.vocab_size, hidden, context, weights, f"{head}.head") for head in heads
            ]
        self._logits = target.logits

    def forward(self, hidden: torch.Tensor, count: int) -> torch.Tensor:
        """Return the logits of the first `count` heads [n, count, vocab]."""
        n, width = hidden.shape
        x = hidden[:, None] + F.silu(self._first(hidden)).view(n, -1, width)[:, :count]
        for layers in self._deeper:
            outputs = [layer(part) for layer, part in zip(layers, x.unbind(1), strict=False)]
            x = x + F.silu(torch.stack(outputs, dim=1))
        if self._heads:
            return torch.stack(
                [head(part) for head, part in zip(self._heads, x.unbind(1), strict=False)], dim=1
            )
        return self._logits(x.reshape(-1, width)).view(n, count, -1)


def _count_layers(stored: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Return the number of heads and of layers in each head. Raises `ConfigError`."""
    naming = WeightMap(rename=RENAME)
    layers = [
        (int(match[1]), int(match[2]))
        for name in stored
        if (match := re.match(r"(\d+)\.(\d+)\.linear\.weight$", naming.renamed(name)))
    ]
    if not layers:
        raise ConfigError(
            "--speculative-config.model: got a checkpoint without the tensor "
            "0.0.linear.weight; expected Medusa heads."
        )
    return 1 + max(head for head, _ in layers), 1 + max(layer for _, layer in layers)
