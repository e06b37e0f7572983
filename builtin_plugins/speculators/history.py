"""What the model has made of the tokens of the last steps: hidden states, and which positions of
which rows they are of.

Keeping them costs a copy, so that it may go on while nothing is guessed. Of what is too old nothing
is left; whoever wants the states of a row gets those up to its end, from as far back as they are
without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from core.api import ForwardBatch
    from core.step import NewRow

MOST_TOKENS: Final = 8192
"""Of the last steps that are kept; the very last is in any case."""


@dataclass
class _Step:
    """One step."""

    rows: dict[int, int]
    """Row to its place among the step's sequences."""
    owners: Sequence[NewRow | None]
    counts: Sequence[int]
    positions: torch.Tensor
    hidden: torch.Tensor

    @cached_property
    def firsts(self) -> list[int]:
        """Return the place of each sequence's first token in the step."""
        ends = torch.tensor(self.counts).cumsum(0)
        firsts: list[int] = (ends - torch.tensor(self.counts)).tolist()
        return firsts

    @cached_property
    def starts(self) -> list[int]:
        """Return the position of each sequence's first token; only the device may know it."""
        starts: list[int] = self.positions[
            torch.tensor(self.firsts, device=self.positions.device)
        ].tolist()
        return starts


class History:
    """The last steps, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()
        self._num_tokens = 0

    def note(
        self, batch: ForwardBatch, owners: Sequence[NewRow | None], hidden: torch.Tensor
    ) -> None:
        """Keep what a step has made: [num_tokens, width] of the batch's tokens, without padding."""
        rows = {row: place for place, row in enumerate(batch.rows)}
        self._steps.append(
            _Step(rows, owners, batch.counts, batch.positions.clone(), hidden.clone())
        )
        self._num_tokens += len(hidden)
        while self._num_tokens > MOST_TOKENS and len(self._steps) > 1:
            self._num_tokens -= len(self._steps.popleft().hidden)

    def take(
        self, row: int, owner: NewRow, first: int, end: int
    ) -> tuple[int, torch.Tensor | None]:
        """Return where the states of a row begin that go on to position `end` without a gap, and
        them [n, width].

        They begin at `first` or behind it; None, and `end`, where there are none.
        """
        pieces: list[torch.Tensor] = []
        for step in reversed(self._steps):
            if first >= end:
                break
            place = step.rows.get(row)
            if place is None:
                continue
            start = step.starts[place]
            if step.owners[place] is not owner or start + step.counts[place] < end:
                break
            low = max(start, first)
            at = step.firsts[place]
            if (
                low < end
            ):  # later steps have computed the rest anew: there were guesses that did not hold
                pieces.append(step.hidden[at + low - start : at + end - start])
                end = low
        return end, torch.cat(pieces[::-1]) if pieces else None
