"""Reads the bytes of a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from builtin_plugins.grammar_backends.contract import Vocabulary
from builtin_plugins.tokenizers.api import TokenSpeller
from core.api.serving import Tokenizer


def read_vocabulary(tokenizer: Tokenizer, end_ids: Sequence[int]) -> Vocabulary:
    """Return the bytes of all tokens.

    Uses the tokenizer's optional `token_bytes(token_id)` or `joined_bytes`, if it has
    one.
    """
    joined = getattr(tokenizer, "joined_bytes", None)
    pieces = None if joined is None else joined(False)
    spell: Callable[[int], bytes] = getattr(tokenizer, "token_bytes", None) or (
        TokenSpeller(tokenizer) if pieces is None else pieces.__getitem__
    )
    hidden = {*tokenizer.special_ids, *end_ids}
    tokens = [b"" if token in hidden else spell(token) for token in range(tokenizer.vocab_size)]
    return Vocabulary(tokens, tuple(token for token in end_ids if token < tokenizer.vocab_size))
