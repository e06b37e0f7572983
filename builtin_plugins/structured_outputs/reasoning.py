"""Notices the end of reasoning in a row's tokens: there the constraint takes hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Vocabulary

if TYPE_CHECKING:
    from core.api import Tokenizer


class EndOfReasoning:
    """Over at once without end markers, or where the prompt ends with one (thinking is switched off)."""

    def __init__(
        self, ends: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary, prompt_end: Sequence[int]
    ) -> None:
        self.is_over = not ends or tokenizer.decode(prompt_end).rstrip().endswith(tuple(ends))
        self._tokens = vocabulary.tokens
        encoded = [tokenizer.encode(end, add_special_tokens=False) for end in ends]
        self._ids = frozenset(ids[0] for ids in encoded if len(ids) == 1)
        self._texts = tuple(end.encode() for end in ends)
        self._longest = max(map(len, self._texts), default=0)
        self._tail = b""

    def take(self, token: int) -> None:
        """Look at the next token; markers are found by their id, or spelt in any number of tokens."""
        text = self._tokens[token] if token < len(self._tokens) else b""
        self._tail += text
        self.is_over = token in self._ids or any(end in self._tail for end in self._texts)
        self._tail = self._tail[-self._longest :]
