"""History of the target's hidden states, for heads that continue from them.

The history costs one copy per step, so it also grows in steps without drafts. Old steps are
dropped. A row gets its states up to its last token, as far back as there is no gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from core.api.execution import NewRow
    from core.api.models import ForwardBatch

MAX_TOKENS: Final = 8192
"""Tokens of the retained steps; the last step is always retained."""


@dataclass
class _Step:
    """Hidden states of one step."""

    rows: dict[int, int]
    """Index of each row among the step's sequences."""
    owners: Sequence[NewRow | None]
    counts: Sequence[int]
    positions: torch.Tensor
    hidden: torch.Tensor

    @cached_property
    def first_tokens(self) -> list[int]:
        """Index of each sequence's first token in the step."""
        ends = torch.tensor(self.counts).cumsum(0)
        first_tokens: list[int] = (ends - torch.tensor(self.counts)).tolist()
        return first_tokens

    @cached_property
    def starts(self) -> list[int]:
        """Position of each sequence's first token. Synchronizes with the device."""
        indices = torch.tensor(self.first_tokens, device=self.positions.device)
        starts: list[int] = self.positions[indices].tolist()
        return starts


class HiddenStateHistory:
    """Hidden states of the last steps, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()
        self._num_tokens = 0

    def add(
        self, batch: ForwardBatch, owners: Sequence[NewRow | None], hidden: torch.Tensor
    ) -> None:
        """Copy a step's hidden states [num_tokens, width], without padding."""
        rows = {row: index for index, row in enumerate(batch.rows)}
        positions = batch.positions.clone()
        self._steps.append(_Step(rows, owners, batch.counts, positions, hidden.clone()))
        self._num_tokens += len(hidden)
        while self._num_tokens > MAX_TOKENS and len(self._steps) > 1:
            self._num_tokens -= len(self._steps.popleft().hidden)

    def states(
        self, row: int, owner: NewRow, first: int, end: int
    ) -> tuple[int, torch.Tensor | None]:
        """Return a row's states [n, width] up to position `end`, and their first position.

        That is `first`, or a later position after a gap. Without any: (`end`, None).
        """
        pieces: list[torch.Tensor] = []
        for step in reversed(self._steps):
            if first >= end:
                break
            index = step.rows.get(row)
            if index is None:
                continue
            start = step.starts[index]
            if step.owners[index] is not owner or start + step.counts[index] < end:
                break
            low = max(start, first)
            first_token = step.first_tokens[index]
            if low < end:  # later steps have recomputed the rest, after rejected draft tokens
                pieces.append(step.hidden[first_token + low - start : first_token + end - start])
                end = low
        return end, torch.cat(pieces[::-1]) if pieces else None
