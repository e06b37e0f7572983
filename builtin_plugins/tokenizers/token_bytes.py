"""The bytes that a token adds to a text, from its spelling and its decoded text."""

from __future__ import annotations

import re
from typing import Final

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet
from core.api.serving import Tokenizer

_BYTE_FALLBACK: Final = re.compile(r"<0x([0-9A-F]{2})>")


class TokenSpeller:
    """Function from a token to its bytes, of any tokenizer."""

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
