"""Grammar backends, which constrain outputs to a schema, a regex or a
grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from core.contracts.text import Tokenizer
from core.types.structured import Constraint

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The bytes of every token by id; empty for special tokens and unused
    ids.
    """

    tokens: Sequence[bytes]
    end_ids: tuple[int, ...]
    """End tokens; allowed only where the grammar may end."""


class GrammarState(Protocol):
    """The grammar state of one output. Used by one thread at a time."""

    def accept(self, token: int) -> bool:
        """Advance by a token; return False and change nothing for a token
        that is not allowed.

        After an end token the output is done: further end tokens are accepted without
        an effect.
        """

    def rollback(self, k: int) -> None:
        """Undo the last `k` accepted tokens."""

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Fill the token bitmask: bit i % 32 of word i // 32 allows token i.

        End tokens are allowed where the output may end; only they are allowed once it
        is done.
        """

    def is_done(self) -> bool:
        """Return whether an end token was accepted."""

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens of an output; return False at the first one that
        is not allowed.
        """


class Grammar(Protocol):
    """A compiled constraint; any number of outputs may use it
    concurrently.
    """

    memory_bytes: int
    """Approximate size in bytes, for the cache limit."""

    def start(self) -> GrammarState:
        """Return the state at the start of an output."""


class GrammarBackend(Protocol):
    """Compiles constraints. Constructed with a `Vocabulary`; thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Raise `InvalidRequest` for an invalid constraint or one the backend
        cannot enforce.

        The field of the error is `structured_outputs.` plus the constraint's kind. Runs
        at admission, without a vocabulary, and must be quick.
        """

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile a constraint that passed `check`; may take seconds, never
        in the step thread.
        """


# --- reading a vocabulary ---------------------------------------------------

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


def byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character in byte-level BPE spelling.

    Printable characters stand for themselves, those from U+0100 on for the other bytes.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
