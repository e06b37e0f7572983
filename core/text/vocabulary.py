"""Reads what every token of a tokenizer stands for, as bytes: all that a grammar needs to know of
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from core.contracts.grammar import Vocabulary
from core.contracts.text import Tokenizer

_BYTE_FALLBACK: Final = re.compile(r"<0x([0-9A-F]{2})>")


def read_vocabulary(tokenizer: Tokenizer, end_ids: Sequence[int]) -> Vocabulary:
    """Return what the tokens stand for.

    A tokenizer that knows says so by `token_bytes(token_id)` or `joined_bytes`.
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
    """Finds a token's bytes from how the tokenizer writes and decodes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level_alphabet()
        # Behind another token, because many decoders drop the space before the first.
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
        # Part of a character: only the spelling tells which.
        if all(character in self._byte_level for character in spelt):
            return bytes(self._byte_level[character] for character in spelt)
        return b""


def byte_level_alphabet() -> dict[str, int]:
    """Return which byte each character stands for in the spelling of byte-level tokenizers.

    Printable ones stand for themselves, the characters from U+0100 on for the others.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
