"""`bad_words`: texts that are never generated; the last token of each is masked when due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from builtin_plugins.logits_processors.token_sequences import Endings
from core.api import Entry, InvalidRequest, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows
from core.api.serving import Tokenizer

if TYPE_CHECKING:
    import torch


_BEFORE: Final = "\n"
"""Text before a word that shares no token with it."""


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
        self._cached: Endings

    @staticmethod
    def prepare(sampling: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
        """Add the token sequences of each word: at a text's start, in it, and after a space."""
        if not sampling.bad_words:
            return sampling
        if tokenizer is None:
            raise InvalidRequest("bad_words", "there is no tokenizer, so texts cannot be avoided.")
        words: list[list[int]] = []
        for word in sampling.bad_words:
            for ids in _spellings(word, tokenizer):
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
        return self._cached.mask(logits, rows, after_prompt=True)

    def _build(self, rows: SampleRows) -> Endings:
        words = [(i, word) for i, row in enumerate(rows.rows) for word in self._words[row]]
        return Endings(rows, words)


def _spellings(word: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the token ids of a word, which depend on what is before it.

    SentencePiece adds a space to the start of a text: there " ab" has two, and in a text one.
    """
    texts = (word, " " + word.lstrip())
    found = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    before = tokenizer.encode(_BEFORE, add_special_tokens=False)
    for text in texts:
        ids = tokenizer.encode(_BEFORE + text, add_special_tokens=False)
        if ids[: len(before)] == before:
            found.append(ids[len(before) :])
    return found
