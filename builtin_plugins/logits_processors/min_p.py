"""`min_p`: drops every token less probable than min_p times the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, SamplerContext, SampleRows, SamplingParams, hookimpl

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Give the processor."""
    return [
        Entry("min_p", f"{__name__}:MinP", "min_p: drop what is improbable beside the best token")
    ]


class MinP:
    """A ratio of probabilities is a difference of logits, so no softmax is needed."""

    params = ("min_p",)
    argmax_invariant = True
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._log_ratios: dict[int, float] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Only requests that set it."""
        return sampling.min_p > 0

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Remember the row's ratio."""
        self._log_ratios[row] = math.log(sampling.min_p)

    def removed(self, row: int) -> None:
        """Forget it."""
        self._log_ratios.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Set what lies too far below the best to -inf."""
        ratios = logits.new_tensor([self._log_ratios[row] for row in rows.rows])
        floor = logits.amax(dim=-1, keepdim=True) + ratios[:, None]
        return logits.masked_fill_(logits < floor, float("-inf"))
