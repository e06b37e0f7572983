"""`allowed_token_ids`: nothing but these tokens is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builtin_plugins.logits_processors.listed import ListedTokens
from core.api import Entry, SamplerContext, SampleRows, SamplingParams, hookimpl

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Give the processor."""
    return [
        Entry("allowed_tokens", f"{__name__}:AllowedTokens", "allowed_token_ids: only these tokens")
    ]


class AllowedTokens:
    """Sets every token that is not listed to -inf."""

    params = ("allowed_token_ids",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._allowed = ListedTokens(context.vocab_size)

    def wants(self, sampling: SamplingParams) -> bool:
        """Only requests with a list."""
        return sampling.allowed_token_ids is not None

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Remember the row's list."""
        self._allowed.put(row, sampling.allowed_token_ids or ())

    def removed(self, row: int) -> None:
        """Forget it."""
        self._allowed.drop(row)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Copy the listed logits into rows of -inf."""
        places, _ = self._allowed.places(logits, rows)
        out = logits.new_full((logits.numel(),), float("-inf"))
        return out.index_copy_(0, places, logits.reshape(-1)[places]).view(logits.shape)
