"""Drafter: runs one speculator, and writes its draft tokens into the batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import msgspec
import torch

from builtin_plugins.features.speculation.messages import Granted
from builtin_plugins.speculators.api import DraftRow

if TYPE_CHECKING:
    from builtin_plugins.speculators.api import Speculator
    from core.api.execution import LoadedParts, NewRow, WorkerParts
    from core.api.models import ForwardBatch
    from core.model_spec.kv import LayerKV

log = logging.getLogger(__name__)
_decode: Final = msgspec.msgpack.Decoder(Granted).decode


class Drafter:
    """Calls the speculator. A faulty speculator costs speed, never tokens."""

    def __init__(self, speculator: Speculator, explain: Callable[[Exception], str]) -> None:
        """`explain`: returns the log line for an exception of the speculator."""
        self._speculator: Speculator | None = speculator
        self._on_hidden_states: Callable[..., None] | None = getattr(
            speculator, "on_hidden_states", None
        )
        self._explain = explain
        self._drafts: dict[int, Sequence[int]] = {}
        """Draft tokens for this step, by row."""
        self._lengths: dict[int, int] = {}
        """Known tokens of a row when its draft was made."""
        self._drafted: tuple[list[int], list[int]] = [], []
        """Rows with draft tokens in this step, and their numbers."""
        self._drafting_s = 0.0
        """Time spent drafting in this step."""

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the speculator's KV layers."""
        load = getattr(self._speculator, "loaded", None)
        return [] if load is None else list(load(parts))

    def attach(self, parts: WorkerParts) -> None:
        """Remember the batch."""
        self._batch = parts.batch
        self._vocab_size = parts.model.vocab_size
        attach = getattr(self._speculator, "attach", None)
        if attach is not None:
            attach(parts)

    def _write_granted(self, payload: bytes | None) -> None:
        """Write the granted draft tokens of this step."""
        self._drafted = [], []
        self._drafting_s = 0.0
        if payload is None:
            return
        granted = _decode(payload)
        granted_rows = [
            (row, count) for row, count in zip(granted.rows, granted.counts, strict=False) if count
        ]
        missing = [(row, count) for row, count in granted_rows if row not in self._drafts]
        if missing and self._speculator is not None:
            last_positions = self._batch.next_positions[[row for row, _ in missing]].tolist()
            requests = [
                (row, last + 1, count)
                for (row, count), last in zip(missing, last_positions, strict=True)
            ]
            begun_s = time.perf_counter()
            self._drafts |= self._propose(self._speculator, requests)
            self._drafting_s = time.perf_counter() - begun_s
        rows = [row for row, _ in granted_rows]
        drafts = [list(self._drafts.get(row, ()))[:count] for row, count in granted_rows]
        self._write(rows, drafts)
        self._drafted = rows, [len(draft) for draft in drafts]

    def _write(self, rows: Sequence[int], drafts: Sequence[Sequence[int]]) -> None:
        tokens = self._batch.token_ids
        width = self._batch.token_ids.shape[1]
        first_indices = [row * width + self._lengths.get(row, 0) for row in rows]
        indices = [
            first + offset
            for first, draft in zip(first_indices, drafts, strict=True)
            for offset in range(len(draft))
        ]
        if indices:
            values = [token for draft in drafts for token in draft]
            both = torch.tensor([indices, values]).to(tokens.device)
            tokens.view(-1).index_copy_(0, both[0], both[1])

    def _propose(
        self, speculator: Speculator, rows: Sequence[tuple[int, int, int]]
    ) -> dict[int, Sequence[int]]:
        """Return the drafts for (row, known tokens, max. draft tokens), cut to valid tokens."""
        draft_rows = []
        for row, length, count in rows:
            owner = cast("NewRow", self._batch.requests[row])  # a computing row has an owner
            tokens = self._batch.token_ids[row, :length].numpy(force=True)
            draft_rows.append(self._shape(DraftRow(row, owner, tokens, count)))
            self._lengths[row] = length
        try:
            drafts = speculator.propose(draft_rows)
            return {
                draft_row.row: self._valid_prefix(draft, draft_row)
                for draft_row, draft in zip(draft_rows, drafts, strict=True)
            }
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            log.error("%s; speculation is disabled", self._explain(error))
            self._speculator = None
            return {}

    def _shape(self, row: DraftRow) -> DraftRow:
        """Return the row with the shape of its draft, a chain or a tree."""
        return row

    def _valid_prefix(self, draft: Sequence[int], row: DraftRow) -> list[int]:
        """Return the draft up to its first token outside the vocabulary."""
        valid: list[int] = []
        for token in draft[: row.max_draft_tokens]:
            if not 0 <= token < self._vocab_size:
                break
            valid.append(int(token))
        return valid

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Remember the positions, which other features may shift for the model."""
        self._positions = batch.positions

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """Pass the hidden states to a speculator that reads them."""
        if self._on_hidden_states is not None and self._speculator is not None:
            self._on_hidden_states(replace(batch, positions=self._positions), hidden)
