"""Runs logits processors over the rows that want them.

A fault of one costs the rows it was called for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from core.contracts import LogitsProcessor, SampleRows
from core.step import NewRow

Explain = Callable[[Exception, str | None], str]
"""Logs an exception of plugin code, in a request if one is named, and returns the text its user
sees.
"""


@dataclass(slots=True)
class Active:
    """One loaded processor, the rows that want it, and how to say whose fault an exception is."""

    processor: LogitsProcessor
    explain: Explain
    rows: set[int] = field(default_factory=set)

    @property
    def follows_tokens(self) -> bool:
        """It may remember what it was called with, and so sees one point of a row only."""
        return getattr(self.processor, "follows_tokens", True)


class Processors:
    """All loaded processors of a worker."""

    def __init__(self, active: Sequence[Active]) -> None:
        self._all = tuple(active)
        self.shaping = tuple(a for a in active if not a.processor.argmax_invariant)
        """Those that can change the best token."""
        self.trimming = tuple(a for a in active if a.processor.argmax_invariant)
        """Those that never do; greedy rows do without."""

    def added(self, new: NewRow) -> str | None:
        """Tell the processors of a new row; return why the request failed, if one of them did."""
        sampling = new.sampling
        if not sampling.ignore_eos and new.eos_token_ids:
            # "min_tokens" keeps off everything that ends an output, the model's own end tokens
            # included.
            sampling = sampling.clone(stop_token_ids=[*sampling.stop_token_ids, *new.eos_token_ids])
        for active in self._all:
            try:
                if active.processor.wants(sampling):
                    active.processor.added(new.row, sampling, new.token_ids, new.prompt_len)
                    active.rows.add(new.row)
            except Exception as error:  # noqa: BLE001 - plugin code; fails this request, named
                return active.explain(error, new.request_id)
        return None

    def removed(self, row: int) -> None:
        """Tell the processors that hold this row that it is empty."""
        for active in self._all:
            if row in active.rows:
                active.rows.discard(row)
                try:
                    active.processor.removed(row)
                except Exception as error:  # noqa: BLE001 - plugin code; the request has left, so none is failed
                    active.explain(error, None)

    @property
    def are_idle(self) -> bool:
        """Say whether no row wants any that can change its best token."""
        return not any(active.rows for active in self.shaping)

    def rows(self) -> set[int]:
        """Return the rows that want any."""
        return set().union(*(active.rows for active in self._all))

    def follow_tokens(self) -> set[int]:
        """Return the rows of which one token can be taken in a step."""
        return set().union(
            *(active.rows for active in self._all if active.rows and active.follows_tokens)
        )

    @staticmethod
    def run(
        chosen: Sequence[Active], logits: torch.Tensor, rows: SampleRows, name: Callable[[int], str]
    ) -> tuple[torch.Tensor, dict[int, str]]:
        """Run some of the processors; `name` says whose a row is.

        Returns the logits and the rows that failed, by row.
        """
        errors: dict[int, str] = {}
        for active in chosen:
            if not active.rows:
                continue
            wanting = [
                i for i, row in enumerate(rows.rows) if row in active.rows and row not in errors
            ]
            if active.follows_tokens:
                wanting = [i for i in wanting if rows.points[i] == 0]
            if not wanting:
                continue
            try:
                whole = len(wanting) == len(rows.rows)
                part = (
                    active.processor.apply(logits, rows)
                    if whole
                    else _apply(active, logits, rows, wanting)
                )
                if part.shape != (len(wanting), logits.shape[1]):
                    raise ValueError(
                        f"apply returned {tuple(part.shape)} for {len(wanting)} rows of "
                        f"{logits.shape[1]}"
                    )
                if whole:
                    logits = part
                else:
                    logits[wanting] = part
            except Exception as error:  # noqa: BLE001 - plugin code; fails the requests it was called for, named
                errors |= {rows.rows[i]: active.explain(error, name(rows.rows[i])) for i in wanting}
        return logits, errors


def _apply(
    active: Active, logits: torch.Tensor, rows: SampleRows, indices: list[int]
) -> torch.Tensor:
    return active.processor.apply(logits[indices], rows.select(indices))
