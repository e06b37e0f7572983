"""Token rules of generation_config.json, which hold for every request of the model.

As in transformers: `suppress_tokens`, `begin_suppress_tokens`, `bad_words_ids` (which may begin in
the prompt) and `forced_eos_token_id` (the last token that a request may generate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builtin_plugins.logits_processors.token_sequences import Endings
from core.api import Entry, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    summary = "suppressed and forced tokens of generation_config.json"
    return [Entry("token_rules", f"{__name__}:TokenRules", summary)]


class TokenRules:
    """Masks the tokens that the model's generation config forbids."""

    params: tuple[str, ...] = ()
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._vocab_size = context.vocab_size
        self._max_model_len = context.max_model_len
        stated = context.hf_config
        self._suppressed = self._known(getattr(stated, "suppress_tokens", None))
        self._suppressed_first = self._known(getattr(stated, "begin_suppress_tokens", None))
        self._forced_last = self._known(getattr(stated, "forced_eos_token_id", None))
        words = getattr(stated, "bad_words_ids", None) or ()
        self._words = [word for word in words if word and self._known(word) == word]
        self._applies = bool(
            self._suppressed or self._suppressed_first or self._forced_last or self._words
        )
        self._last_length: dict[int, int] = {}
        self._cached_rows: list[int] | None = None
        self._endings: Endings

    def _known(self, tokens: Any) -> list[int]:
        listed = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
        return [token for token in listed if 0 <= token < self._vocab_size]

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the model has token rules."""
        return self._applies

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the length before the last token of the row."""
        longest = self._max_model_len - prompt_len
        max_tokens = min(sampling.max_tokens or longest, longest)
        self._last_length[row] = prompt_len + max_tokens - 1

    def removed(self, row: int) -> None:
        """Remove the row's length."""
        self._last_length.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Mask suppressed tokens; at the last position leave only the forced one."""
        if self._suppressed:
            logits[:, self._suppressed] = float("-inf")
        lengths = list(zip(rows.rows, rows.lengths, rows.prompt_lens, strict=True))
        if self._suppressed_first:
            first = [i for i, (_, length, prompt) in enumerate(lengths) if length == prompt]
            for i in first:
                logits[i, self._suppressed_first] = float("-inf")
        if self._words:
            logits = self._without_words(logits, rows)
        if self._forced_last:
            for i, (row, length, _) in enumerate(lengths):
                if length == self._last_length[row]:
                    logits[i] = float("-inf")
                    logits[i, self._forced_last] = 0.0
        return logits

    def _without_words(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        if self._cached_rows != rows.rows:
            pairs = [(i, word) for i in range(len(rows.rows)) for word in self._words]
            self._endings = Endings(rows, pairs)
            self._cached_rows = list(rows.rows)
        return self._endings.mask(logits, rows, after_prompt=False)
