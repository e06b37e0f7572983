"""Autoregressive heads: one or a few layers with their own KV cache.

At position p they read the embedding of token p + 1 and the hidden state of p, which comes from
the target model or, for draft tokens, from the head itself. A row's cache catches up when the row
is drafted. It starts where hidden states are known without a gap: after a prefix cache hit, or
after a time without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from builtin_plugins.speculators.draft_kv_layers import DraftKVLayers, draft_layers
from builtin_plugins.speculators.draft_trees import LevelNode, fill_trees
from builtin_plugins.speculators.heads import HeadSpeculator
from core.models.layers.state import prepare

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow
    from core.api.execution import LoadedParts, NewRow, WorkerParts
    from core.model_spec.kv import LayerKV
    from core.models.layers.state import LayerCache


class ChainHead(Protocol):
    """The module of an autoregressive head."""

    kv_layers: Sequence[LayerKV]

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Set the cache of each KV layer."""

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens [n]."""

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the head's input from captured hidden states [n, captured width]."""

    def __call__(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of `best`, and the hidden states for the next step, [n, hidden] each."""

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the top tokens [n, count], or fewer in a small vocabulary."""


@dataclass(slots=True)
class _CachedRow:
    """The cached positions of a row."""

    owner: NewRow
    origin: int
    """First cached position."""
    end: int
    """Position after the last one computed from the target's hidden states."""


class ChainSpeculator(HeadSpeculator):
    """Drafts with an autoregressive head, which a subclass builds."""

    _head: Any

    def _layers(self, parts: LoadedParts) -> Sequence[LayerKV]:
        self._prepare = partial(prepare, parts.context.attention, parts.context.ops)
        source = f"--speculative-config.method {self._settings.method!r}"
        return draft_layers(self._head.kv_layers, source)

    def attach(self, parts: WorkerParts) -> None:
        """Bind the head's KV cache."""
        super().attach(parts)
        self._kv_layers = DraftKVLayers(parts, self._prepare, self._settings.tree)
        self._head.bind_kv(self._kv_layers.caches)
        self._cached_rows: dict[int, _CachedRow] = {}

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the head's top tokens for each row."""
        drafts: list[list[int]] = [[] for _ in rows]
        new_states = {
            index: states
            for index, row in enumerate(rows)
            if (states := self._catch_up(row)) is not None
        }
        indices = [index for index in new_states if rows[index].max_draft_tokens]
        if not indices:
            return drafts
        draft_rows = [rows[index] for index in indices]
        origins = [self._cached_rows[row.row].origin for row in draft_rows]
        starts = [new_states[index][0] for index in indices]
        hidden = self._head.first(torch.cat([new_states[index][1] for index in indices]))
        ends = [len(row.tokens) - 1 for row in draft_rows]

        def first_level(count: int) -> list[list[int]]:
            nonlocal hidden
            out, hidden = self._compute_new_tokens(draft_rows, origins, starts, hidden)
            return self._best(out, count)

        def next_level(
            level: list[LevelNode], tokens: list[list[int]], count: int
        ) -> list[list[int]]:
            nonlocal hidden
            positions, plans = self._kv_layers.level_attention(draft_rows, origins, ends, level)
            token_ids = [tokens[node.row][node.node - 1] for node in level]
            parents = torch.tensor([node.parent for node in level], device=self._device)
            ones = [1] * len(level)
            out, hidden = self._compute(token_ids, hidden[parents], positions, plans, ones)
            return self._best(out, count)

        filled = fill_trees(draft_rows, first_level, next_level)
        for index, draft in zip(indices, filled, strict=True):
            drafts[index] = draft
        return drafts

    def _best(self, out: torch.Tensor, count: int) -> list[list[int]]:
        best: list[list[int]] = self._head.best(out, count).tolist()
        return best

    def _catch_up(self, row: DraftRow) -> tuple[int, torch.Tensor] | None:
        """Return the first uncached position, and the hidden states from it on.

        Marks these positions as cached. None: the hidden states are unknown.
        """
        cached = self._cached_rows.get(row.row)
        end = len(row.tokens) - 1
        if cached is None or cached.owner is not row.owner:
            cached = _CachedRow(row.owner, 0, 0)
            self._cached_rows[row.row] = cached
        start, hidden = self._history.states(row.row, row.owner, min(cached.end, end - 1), end)
        if hidden is None:
            return None
        if start > cached.end:
            cached.origin = start
        cached.end = end
        return start, hidden

    def _compute_new_tokens(
        self,
        rows: Sequence[DraftRow],
        origins: list[int],
        starts: list[int],
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the head on each row's uncached positions.

        Returns the output and the hidden states of each row's last position.
        """
        new_tokens = [
            row.tokens[start + 1 :].tolist() for row, start in zip(rows, starts, strict=True)
        ]
        counts = [len(tokens) for tokens in new_tokens]
        plans = self._kv_layers.attention([row.row for row in rows], origins, starts, counts)
        positions = [
            position
            for start, count in zip(starts, counts, strict=True)
            for position in range(start, start + count)
        ]
        token_ids = [token for tokens in new_tokens for token in tokens]
        out, next_hidden = self._compute(token_ids, hidden, positions, plans, counts)
        last = torch.tensor(counts, device=self._device).cumsum(0) - 1
        return out[last], next_hidden[last]

    def _compute(
        self,
        token_ids: list[int],
        hidden: torch.Tensor,
        positions: list[int],
        plans: Sequence[Any],
        counts: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the head on tokens. Returns its output and its hidden states."""
        embedded = self._head.embedded(torch.tensor(token_ids, device=self._device))
        position_ids = torch.tensor(positions, device=self._device)
        out, next_hidden = self._head(embedded, hidden, position_ids, [*plans, counts])
        return out, next_hidden
