"""Reads the bytes of a tokenizer's tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from builtin_plugins.grammar_backends.contract import Vocabulary
from builtin_plugins.tokenizers.api import byte_level_alphabet
from core.api.serving import Tokenizer

_BYTE_FALLBACK: Final = re.compile(r"<0x([0-9A-F]{2})>")


def read_vocabulary(tokenizer: Tokenizer, end_ids: Sequence[int]) -> Vocabulary:
    """Return the bytes of all tokens.

    Uses the tokenizer's optional `token_bytes(token_id)` or `joined_bytes`, if it has
    one.
    """
    joined = getattr(tokenizer, "joined_bytes", None)
    pieces = None if joined is None else joined(False)
    spell: Callable[[int], bytes] = getattr(tokenizer, "token_bytes", None) or (
        _Speller(tokenizer) if pieces is None else pieces.__getitem__
    )
    hidden = {*tokenizer.special_ids, *end_ids}
    tokens = [b"" if token in hidden else spell(token) for token in range(tokenizer.vocab_size)]
    return Vocabulary(tokens, tuple(token for token in end_ids if token < tokenizer.vocab_size))


class _Speller:
    """Derives a token's bytes from its spelling and its decoded text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level_alphabet()
        # Decoded after another token: many decoders drop the space before the first
        # one.
        self._anchor = next(
            (t for t in range(tokenizer.vocab_size) if tokenizer.decode([t]).isalnum()), 0
        )
        self._anchor_text = tokenizer.decode([self._anchor])

    def __call__(self, token: int) -> bytes:
        spelt = self._tokenizer.token_text(token)
        text = self._tokenizer.decode([self._anchor, token])[len(self._anchor_text) :]
        one_byte = _BYTE_FALLBACK.fullmatch(spelt)
        if one_byte is not None and text != spelt:
            return bytes((int(one_byte[1], 16),))
        if "\ufffd" not in text:
            return text.encode()
        # Part of a character: only the spelling has its bytes.
        if all(character in self._byte_level for character in spelt):
            return bytes(self._byte_level[character] for character in spelt)
        return b""
