"""Repetition, presence and frequency penalties, computed from the token history in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    summary = "repetition, presence and frequency penalties"
    return [Entry("penalties", f"{__name__}:Penalties", summary)]


class Penalties:
    """Repetition counts prompt and output, presence and frequency the output only."""

    params = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._penalties: dict[int, tuple[float, float, float]] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether any penalty differs from its neutral value."""
        return _penalties(sampling) != (1.0, 0.0, 0.0)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's penalties."""
        self._penalties[row] = _penalties(sampling)

    def removed(self, row: int) -> None:
        """Remove the row's penalties."""
        self._penalties.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Change the logits of every token in a row's history.

        Each history position computes its token's final logit; repeated tokens write equal values.
        """
        factors = logits.new_tensor([self._penalties[row] for row in rows.rows])  # [n, 3]
        repetition = factors[:, :1]
        presence = factors[:, 1:2]
        frequency = factors[:, 2:]
        longest = max(rows.lengths)
        history = rows.token_ids[:, :longest].index_select(0, rows.row_index)  # [n, longest]
        positions = history.new_ones(longest).cumsum(0) - 1
        known = positions < rows.length_index[:, None]
        # Beyond a row's end, its first token is repeated.
        history = history.where(known, history[:, :1])
        generated = known & (positions >= rows.prompt_index[:, None])
        counts = logits.new_zeros(logits.shape).scatter_add_(1, history, generated.to(logits.dtype))
        counts = counts.gather(1, history)
        seen = logits.gather(1, history)
        seen = (seen / repetition).where(seen > 0, seen * repetition)
        seen = seen - frequency * counts - presence * (counts > 0)
        return logits.scatter_(1, history, seen)


def _penalties(sampling: SamplingParams) -> tuple[float, float, float]:
    return sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
