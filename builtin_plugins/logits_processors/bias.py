"""`logit_bias`: biases added to the logits of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builtin_plugins.logits_processors.token_lists import TokenLists
from core.api import Entry, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    return [Entry("bias", f"{__name__}:LogitBias", "logit_bias: numbers added to single tokens")]


class LogitBias:
    """Adds each row's biases."""

    params = ("logit_bias",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._biases = TokenLists(context.vocab_size)

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has a bias."""
        return bool(sampling.logit_bias)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's biases."""
        biases = sampling.logit_bias or {}
        self._biases.put(row, list(biases), list(biases.values()))

    def removed(self, row: int) -> None:
        """Remove the row's biases."""
        self._biases.drop(row)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Add all biases in one operation."""
        indices, values = self._biases.logit_indices(logits, rows)
        return logits.reshape(-1).index_add_(0, indices, values).view(logits.shape)
