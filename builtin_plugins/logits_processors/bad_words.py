"""`bad_words`: texts that are never generated, as token sequences of which the last token is
refused in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import (
    Entry,
    InvalidRequest,
    SamplerContext,
    SampleRows,
    SamplingParams,
    Tokenizer,
    hookimpl,
)

if TYPE_CHECKING:
    import torch


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Give the processor."""
    return [Entry("bad_words", f"{__name__}:BadWords", "bad_words: texts that are never generated")]


class BadWords:
    """Compares the end of each row's output with the words' beginnings, on the device."""

    params = ("bad_words",)
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._vocab_size = context.vocab_size
        self._words: dict[int, list[list[int]]] = {}
        self._made_for: list[int] | None = None
        self._made: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

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
        """Only requests with words."""
        return bool(sampling.bad_words_token_ids)

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Remember the row's words; one with a token the model cannot produce needs no care."""
        self._words[row] = [
            w for w in sampling.bad_words_token_ids if w and max(w) < self._vocab_size
        ]
        self._made_for = None

    def removed(self, row: int) -> None:
        """Forget them."""
        self._words.pop(row, None)
        self._made_for = None

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Refuse the last token of every word whose beginning the output ends with."""
        if self._made_for != rows.rows:
            self._made = self._make(rows)
            self._made_for = list(rows.rows)
        index, beginnings, last = self._made
        length = rows.length_index[index]
        prompt = rows.prompt_index[index]
        span = beginnings.shape[1]
        back = beginnings.new_ones(span).cumsum(0).flip(0)  # span, ..., 2, 1 tokens ago
        places = length[:, None] - back  # [words, span]
        tokens = rows.token_ids[rows.row_index[index][:, None], places.clamp(min=0)]
        # What came with the prompt was not generated, so it begins no word.
        same = (tokens == beginnings) & (places >= prompt[:, None])
        matches = (same | (beginnings < 0)).all(dim=1)
        refusal = logits.new_zeros(len(last)).masked_fill_(matches, float("-inf"))
        flat = index * logits.shape[1] + last
        return logits.reshape(-1).index_add_(0, flat, refusal).view(logits.shape)

    def _make(self, rows: SampleRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return, per word: index of its row, its tokens but the last (padded in front with -1),
        its last token.
        """
        words = [(i, word) for i, row in enumerate(rows.rows) for word in self._words[row]]
        span = max((len(word) - 1 for _, word in words), default=0)
        new = rows.row_index.new_tensor
        beginnings = new([[-1] * (span + 1 - len(word)) + word[:-1] for _, word in words])
        return (
            new([i for i, _ in words]),
            beginnings.view(len(words), span),
            new([word[-1] for _, word in words]),
        )
