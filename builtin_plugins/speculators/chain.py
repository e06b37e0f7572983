"""Heads that guess one token behind the other, or several: a layer or a few with keys and values of
their own.

At position p they read the embedding of token p + 1 and the hidden state of p, which the model has
made or, of a guess, they themselves. What is cached of a row is caught up with when it is guessed
for. It begins where hidden states are known from without a gap: behind a prefix that was found in
the cache, or behind a time in which nothing was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from builtin_plugins.speculators.heads import Heads
from builtin_plugins.speculators.own_layers import OwnLayers, kept
from builtin_plugins.speculators.trees import Grown, fill

if TYPE_CHECKING:
    from core.api import DraftRow, LayerKV
    from core.contracts.scheduling import LoadedParts, WorkerParts
    from core.models.layers.state import LayerCache
    from core.step import NewRow


class ChainHead(Protocol):
    """What is built of a checkpoint."""

    kv_layers: Sequence[LayerKV]

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Take the cache of each caching layer."""

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embedding of tokens [n], as it reads it."""

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the head reads of the model's hidden states [n, width of what is kept]."""

    def __call__(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what its logits are made of, and what it reads as hidden states of these
        positions, [n, hidden] each.
        """

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the most likely tokens [n, count], or fewer of each where its vocabulary is
        smaller.
        """


@dataclass(slots=True)
class _Row:
    """What is cached of a row."""

    owner: NewRow
    origin: int
    """The first position."""
    end: int
    """That behind the last one whose hidden state was the model's."""


class Chain(Heads):
    """A subclass builds the head."""

    _head: Any

    def _layers(self, parts: LoadedParts) -> Sequence[LayerKV]:
        self._backend = parts.context.attention
        return kept(self._head.kv_layers, f"--speculative-config.method {self._settings.method!r}")

    def attach(self, parts: WorkerParts) -> None:
        """Take the cache."""
        super().attach(parts)
        self._own = OwnLayers(parts, self._backend, self._settings.tree)
        self._head.bind_kv(self._own.caches)
        self._known: dict[int, _Row] = {}

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the most likely tokens of each row, as the head continues what the model has made
        of it.
        """
        drafts: list[list[int]] = [[] for _ in rows]
        fresh = {
            place: found
            for place, asked in enumerate(rows)
            if (found := self._caught_up(asked)) is not None
        }
        places = [place for place in fresh if rows[place].most]
        if not places:
            return drafts
        asked = [rows[place] for place in places]
        origins = [self._known[rows[place].row].origin for place in places]
        starts = [fresh[place][0] for place in places]
        stream = self._head.first(torch.cat([fresh[place][1] for place in places]))
        ends = [len(each.tokens) - 1 for each in asked]

        def begin(count: int) -> list[list[int]]:
            nonlocal stream
            own = [
                each.tokens[start + 1 :].tolist() for each, start in zip(asked, starts, strict=True)
            ]
            counts = [len(tokens) for tokens in own]
            plans = self._own.attention([each.row for each in asked], origins, starts, counts)
            positions = [
                at for start, end in zip(starts, ends, strict=True) for at in range(start, end)
            ]
            out, stream = self._compute(
                [token for tokens in own for token in tokens], stream, positions, plans, counts
            )
            lasts = torch.tensor(counts, device=self._device).cumsum(0) - 1
            stream = stream[lasts]
            return self._best(out[lasts], count)

        def go_on(level: list[Grown], tokens: list[list[int]], count: int) -> list[list[int]]:
            nonlocal stream
            positions, plans = self._own.further(asked, origins, ends, level)
            ids = [tokens[node.row][node.place - 1] for node in level]
            read = stream[torch.tensor([node.parent for node in level], device=self._device)]
            out, stream = self._compute(ids, read, positions, plans, [1] * len(level))
            return self._best(out, count)

        for place, draft in zip(places, fill(asked, begin, go_on), strict=True):
            drafts[place] = draft
        return drafts

    def _best(self, out: torch.Tensor, count: int) -> list[list[int]]:
        best: list[list[int]] = self._head.best(out, count).tolist()
        return best

    def _caught_up(self, asked: DraftRow) -> tuple[int, torch.Tensor] | None:
        """Return the first position whose keys are to be computed, and hidden states from there on;
        take them for cached.
        """
        known = self._known.get(asked.row)
        end = len(asked.tokens) - 1
        if known is None or known.owner is not asked.owner:
            known = self._known[asked.row] = _Row(asked.owner, 0, 0)
        start, hidden = self._history.take(asked.row, asked.owner, min(known.end, end - 1), end)
        if hidden is None:
            return None
        if start > known.end:
            known.origin = start
        known.end = end
        return start, hidden

    def _compute(
        self,
        ids: list[int],
        hidden: torch.Tensor,
        positions: list[int],
        plans: Sequence[Any],
        counts: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the head gives at each of these tokens."""
        embedded = self._head.embedded(torch.tensor(ids, device=self._device))
        at = torch.tensor(positions, device=self._device)
        out, stream = self._head(embedded, hidden, at, [*plans, counts])
        return out, stream
