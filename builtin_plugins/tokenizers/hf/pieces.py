"""What the tokens of a byte-level tokenizer stand for, read off their spelling when first asked
for.
"""

from __future__ import annotations

from typing import Final

import tokenizers

from core.api import byte_level_alphabet

BYTES: Final = byte_level_alphabet()


class Pieces(dict[int, bytes]):
    """Bytes by id; none for those that are hidden, and for ids without a token.

    As the library's decoder has it: a spelling in the byte-level alphabet stands for its bytes, any
    other (that of a token that was added as it is) for itself.
    """

    def __init__(self, inner: tokenizers.Tokenizer, hidden: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._inner = inner
        self._hidden = hidden

    def __missing__(self, token: int) -> bytes:
        spelt = None if token in self._hidden else self._inner.id_to_token(token)
        if spelt is None:
            piece = b""
        elif all(character in BYTES for character in spelt):
            piece = bytes(BYTES[character] for character in spelt)
        else:
            piece = spelt.encode()
        self[token] = piece
        return piece
