"""Runs logits processors on the rows that use them; a fault fails only the rows of its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from core.api.execution import NewRow
from core.api.sampling import LogitsProcessor, SampleRows

Explain = Callable[[Exception, str | None], str]
"""Logs an exception of plugin code, with the request id, and returns the client's message."""


@dataclass(slots=True)
class Active:
    """A loaded processor and the rows that use it."""

    processor: LogitsProcessor
    explain: Explain
    rows: set[int] = field(default_factory=set)

    @property
    def follows_tokens(self) -> bool:
        """Whether the processor has state per token, and so gets one sample point per row."""
        return getattr(self.processor, "follows_tokens", True)


class Processors:
    """All loaded logits processors of a worker."""

    def __init__(self, active: Sequence[Active]) -> None:
        self._all = tuple(active)
        self.shaping = tuple(a for a in active if not a.processor.argmax_invariant)
        """Processors that can change the argmax."""
        self.trimming = tuple(a for a in active if a.processor.argmax_invariant)
        """Processors that never change the argmax; greedy rows skip them."""

    def added(self, new: NewRow) -> str | None:
        """Add a new row to its processors; return the error message if one of them fails."""
        sampling = new.sampling
        if not sampling.ignore_eos and new.eos_token_ids:
            # `min_tokens` suppresses every stop token, the model's own EOS tokens included.
            stops = [*sampling.stop_token_ids, *new.eos_token_ids]
            sampling = sampling.clone(stop_token_ids=stops)
        for active in self._all:
            processor = active.processor
            try:
                if processor.wants(sampling):
                    processor.added(new.row, sampling, new.token_ids, new.prompt_len)
                    active.rows.add(new.row)
            except Exception as error:  # noqa: BLE001 - plugin code; fails this request only
                return active.explain(error, new.request_id)
        return None

    def removed(self, row: int) -> None:
        """Remove a row from its processors."""
        for active in self._all:
            if row in active.rows:
                active.rows.discard(row)
                try:
                    active.processor.removed(row)
                except Exception as error:  # noqa: BLE001 - plugin code; the request has left
                    active.explain(error, None)

    @property
    def are_idle(self) -> bool:
        """Whether no row uses a processor that can change the argmax."""
        return not any(active.rows for active in self.shaping)

    def rows(self) -> set[int]:
        """Return the rows that use any processor."""
        return set().union(*(active.rows for active in self._all))

    def rows_without_drafts(self) -> set[int]:
        """Return the rows that accept one token per step: their processors follow tokens."""
        followers = (a for a in self._all if a.rows and a.follows_tokens)
        return set().union(*(active.rows for active in followers))

    @staticmethod
    def run(
        chosen: Sequence[Active],
        logits: torch.Tensor,
        rows: SampleRows,
        request_id_of: Callable[[int], str],
    ) -> tuple[torch.Tensor, dict[int, str]]:
        """Run the chosen processors; return the logits and the errors by row."""
        errors: dict[int, str] = {}
        for active in chosen:
            if not active.rows:
                continue
            indices = _indices_of(active, rows, errors)
            if not indices:
                continue
            try:
                logits = _apply(active, logits, rows, indices)
            except Exception as error:  # noqa: BLE001 - plugin code; fails its rows only
                for i in indices:
                    row = rows.rows[i]
                    errors[row] = active.explain(error, request_id_of(row))
        return logits, errors


def _indices_of(active: Active, rows: SampleRows, errors: dict[int, str]) -> list[int]:
    """Return the entries of `rows` that the processor sees."""
    users = active.rows
    indices = [i for i, row in enumerate(rows.rows) if row in users and row not in errors]
    if active.follows_tokens:
        indices = [i for i in indices if rows.points[i] == 0]
    return indices


def _apply(
    active: Active, logits: torch.Tensor, rows: SampleRows, indices: list[int]
) -> torch.Tensor:
    """Return the logits with one processor applied to the entries at `indices`."""
    count = len(indices)
    is_whole = count == len(rows.rows)
    if is_whole:
        part = active.processor.apply(logits, rows)
    else:
        part = active.processor.apply(logits[indices], rows.select(indices))
    if part.shape != (count, logits.shape[1]):
        vocab_size = logits.shape[1]
        raise ValueError(f"apply returned {tuple(part.shape)} for {count} rows of {vocab_size}")
    if is_whole:
        return part
    logits[indices] = part
    return logits
