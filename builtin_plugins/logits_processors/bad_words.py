"""`bad_words`: texts that are never generated; the last token of each is masked when due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, InvalidRequest, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows
from core.api.serving import Tokenizer

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    return [Entry("bad_words", f"{__name__}:BadWords", "bad_words: texts that are never generated")]


class BadWords:
    """Compares each row's output with all tokens but the last of each word, on the device."""

    params = ("bad_words",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._vocab_size = context.vocab_size
        self._words: dict[int, list[list[int]]] = {}
        self._cached_rows: list[int] | None = None
        self._cached: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    @staticmethod
    def prepare(sampling: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
        """Add the token sequences of each word, at the start of a text and after a space."""
        if not sampling.bad_words:
            return sampling
        if tokenizer is None:
            raise InvalidRequest("bad_words", "there is no tokenizer, so texts cannot be avoided.")
        texts = [text for word in sampling.bad_words for text in (word, " " + word.lstrip())]
        words: list[list[int]] = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False)
            if ids and ids not in words:
                words.append(ids)
        return sampling.clone(bad_words_token_ids=words)

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has words."""
        return bool(sampling.bad_words_token_ids)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's words, except those with tokens beyond the vocabulary."""
        self._words[row] = [
            w for w in sampling.bad_words_token_ids if w and max(w) < self._vocab_size
        ]
        self._cached_rows = None

    def removed(self, row: int) -> None:
        """Remove the row's words."""
        self._words.pop(row, None)
        self._cached_rows = None

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Mask the last token of every word that the output ends with but for this token."""
        if self._cached_rows != rows.rows:
            self._cached = self._build(rows)
            self._cached_rows = list(rows.rows)
        index, prefixes, last = self._cached
        length = rows.length_index[index]
        prompt = rows.prompt_index[index]
        span = prefixes.shape[1]
        back = prefixes.new_ones(span).cumsum(0).flip(0)  # span, ..., 2, 1 tokens ago
        positions = length[:, None] - back  # [words, span]
        tokens = rows.token_ids[rows.row_index[index][:, None], positions.clamp(min=0)]
        # Prompt tokens are not generated, so they begin no word.
        same = (tokens == prefixes) & (positions >= prompt[:, None])
        matches = (same | (prefixes < 0)).all(dim=1)
        mask = logits.new_zeros(len(last)).masked_fill_(matches, float("-inf"))
        flat = index * logits.shape[1] + last
        return logits.reshape(-1).index_add_(0, flat, mask).view(logits.shape)

    def _build(self, rows: SampleRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return per word: row index, tokens but the last (left-padded with -1), last token."""
        words = [(i, word) for i, row in enumerate(rows.rows) for word in self._words[row]]
        span = max((len(word) - 1 for _, word in words), default=0)
        new = rows.row_index.new_tensor
        prefixes = new([[-1] * (span + 1 - len(word)) + word[:-1] for _, word in words])
        return (
            new([i for i, _ in words]),
            prefixes.view(len(words), span),
            new([word[-1] for _, word in words]),
        )
