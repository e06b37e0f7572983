"""`min_tokens`: no stop token before this many tokens are generated."""

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
    summary = "min_tokens: no end before so many tokens"
    return [Entry("min_tokens", f"{__name__}:MinTokens", summary)]


class MinTokens:
    """Masks stop tokens, the model's EOS tokens included, until the minimum is reached."""

    params = ("min_tokens",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._stops = TokenLists(context.vocab_size)
        self._min_tokens: dict[int, int] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has a minimum and stop tokens."""
        return sampling.min_tokens > 0 and bool(sampling.stop_token_ids)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's stop tokens and minimum."""
        self._stops.put(row, sampling.stop_token_ids)
        self._min_tokens[row] = sampling.min_tokens

    def removed(self, row: int) -> None:
        """Remove the row's stop tokens and minimum."""
        self._stops.drop(row)
        self._min_tokens.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Mask stop tokens of the rows below their minimum."""
        facts = zip(rows.rows, rows.lengths, rows.prompt_lens, strict=True)
        short = [
            i
            for i, (row, length, prompt) in enumerate(facts)
            if length - prompt < self._min_tokens[row]
        ]
        if not short:
            return logits
        indices, _ = self._stops.logit_indices(logits, rows, short)
        return logits.reshape(-1).index_fill_(0, indices, float("-inf")).view(logits.shape)
