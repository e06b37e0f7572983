"""`min_p`: drops every token less probable than min_p times the top token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    summary = "min_p: drop tokens that are improbable next to the top token"
    return [Entry("min_p", f"{__name__}:MinP", summary)]


class MinP:
    """A ratio of probabilities is a difference of logits, so no softmax is needed."""

    params = ("min_p",)
    argmax_invariant = True
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._log_ratios: dict[int, float] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request sets it."""
        return sampling.min_p > 0

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's log ratio."""
        self._log_ratios[row] = math.log(sampling.min_p)

    def removed(self, row: int) -> None:
        """Remove the row's ratio."""
        self._log_ratios.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Set logits too far below the maximum to -inf."""
        ratios = logits.new_tensor([self._log_ratios[row] for row in rows.rows])
        floor = logits.amax(dim=-1, keepdim=True) + ratios[:, None]
        return logits.masked_fill_(logits < floor, float("-inf"))
