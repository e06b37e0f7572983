"""`allowed_token_ids`: only these tokens are generated."""

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
    return [
        Entry("allowed_tokens", f"{__name__}:AllowedTokens", "allowed_token_ids: only these tokens")
    ]


class AllowedTokens:
    """Sets the logits of all other tokens to -inf."""

    params = ("allowed_token_ids",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._allowed = TokenLists(context.vocab_size)

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has a list."""
        return sampling.allowed_token_ids is not None

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's list."""
        self._allowed.put(row, sampling.allowed_token_ids or ())

    def removed(self, row: int) -> None:
        """Remove the row's list."""
        self._allowed.drop(row)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Copy the listed logits into rows of -inf."""
        indices, _ = self._allowed.logit_indices(logits, rows)
        out = logits.new_full((logits.numel(),), float("-inf"))
        return out.index_copy_(0, indices, logits.reshape(-1)[indices]).view(logits.shape)
