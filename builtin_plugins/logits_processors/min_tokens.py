"""`min_tokens`: no token that ends the output before so many were generated."""

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
        Entry("min_tokens", f"{__name__}:MinTokens", "min_tokens: no end before so many tokens")
    ]


class MinTokens:
    """Keeps stop tokens, the model's own end tokens among them, at -inf for a while."""

    params = ("min_tokens",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._stops = ListedTokens(context.vocab_size)
        self._at_least: dict[int, int] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Only requests with a minimum and something that could end them."""
        return sampling.min_tokens > 0 and bool(sampling.stop_token_ids)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Remember what ends the row, and from when on it may."""
        self._stops.put(row, sampling.stop_token_ids)
        self._at_least[row] = sampling.min_tokens

    def removed(self, row: int) -> None:
        """Forget it."""
        self._stops.drop(row)
        self._at_least.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Mask the rows that have generated too little."""
        facts = zip(rows.rows, rows.lengths, rows.prompt_lens, strict=True)
        short = [
            i
            for i, (row, length, prompt) in enumerate(facts)
            if length - prompt < self._at_least[row]
        ]
        if not short:
            return logits
        places, _ = self._stops.places(logits, rows, short)
        return logits.reshape(-1).index_fill_(0, places, float("-inf")).view(logits.shape)
