"""Heads that guess one token after the other: a layer or a few with keys and values of their own.

At position p they read the embedding of token p + 1 and the hidden state of p, which the model has made or, of a guess, they
themselves. What is cached of a row is caught up with when it is guessed for. It begins where hidden states are known from
without a gap: behind a prefix that was found in the cache, or behind a time in which nothing was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from builtin_plugins.speculators.heads import Heads
from builtin_plugins.speculators.own_layers import OwnLayers, kept

if TYPE_CHECKING:
    from core.api import DraftRow, LayerKV
    from core.contracts.scheduling import LoadedParts, WorkerParts
    from core.nn.state import LayerCache
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
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, plans: Sequence[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what its logits are made of, and what it reads as hidden states of these positions, [n, hidden] each."""

    def best(self, out: torch.Tensor) -> torch.Tensor:
        """Return the most likely tokens [n]."""


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
        self._own = OwnLayers(parts, self._backend)
        self._head.bind_kv(self._own.caches)
        self._known: dict[int, _Row] = {}

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the most likely tokens of each row, as the head continues what the model has made of it."""
        drafts: list[list[int]] = [[] for _ in rows]
        fresh = {place: found for place, asked in enumerate(rows) if (found := self._caught_up(asked)) is not None}
        places = [place for place in fresh if rows[place].most]
        if not places:
            return drafts
        known = [self._known[rows[place].row] for place in places]
        starts = [fresh[place][0] for place in places]
        hidden = self._head.first(torch.cat([fresh[place][1] for place in places]))
        tokens = [rows[place].tokens[start + 1 :].tolist() for place, start in zip(places, starts, strict=True)]
        while True:
            out, stream = self._compute(
                [rows[p].row for p in places], [k.origin for k in known], starts, tokens, hidden
            )
            best = self._head.best(out)
            for place, token in zip(places, best.tolist(), strict=True):
                drafts[place].append(token)
            going = [i for i, place in enumerate(places) if len(drafts[place]) < rows[place].most]
            if not going:
                return drafts
            starts = [starts[i] + len(tokens[i]) for i in going]
            places, known = [places[i] for i in going], [known[i] for i in going]
            tokens, hidden = [drafts[place][-1:] for place in places], stream[going]

    def _caught_up(self, asked: DraftRow) -> tuple[int, torch.Tensor] | None:
        """Return the first position whose keys are to be computed, and hidden states from there on; take them for cached."""
        known, end = self._known.get(asked.row), len(asked.tokens) - 1
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
        rows: Sequence[int],
        origins: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute tokens of rows from positions on; return what the head gives at the last one of each."""
        counts = [len(own) for own in tokens]
        ids = torch.tensor([token for own in tokens for token in own], device=self._device)
        positions = [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)]
        at = torch.tensor(positions, device=self._device)
        plans = self._own.attention(rows, origins, starts, counts)
        out, stream = self._head(self._head.embedded(ids), hidden, at, [*plans, counts])
        lasts = torch.tensor(counts, device=self._device).cumsum(0) - 1
        return out[lasts], stream[lasts]
