"""What an encoder reads, and what its model states of that. Plain data, torch-free."""

from __future__ import annotations

import msgspec


class EncoderInput(msgspec.Struct, array_like=True, frozen=True):
    """What the encoder of a request reads: token ids, or features."""

    length: int
    """Positions it takes in the cache, which decoders attend to."""
    token_ids: list[int] = []
    features: bytes = b""
    """Numbers of four bytes, row by row."""
    shape: tuple[int, int] = (0, 0)
    """Of the features: numbers per frame, frames."""


class EncoderFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What the encoder of a model takes, and how its decoder begins."""

    max_len: int
    """Most positions of one input."""
    vocab_size: int = 0
    """Token ids are below this; 0: it reads features."""
    shape: tuple[int, int] = (0, 0)
    """Of the features."""
    start_tokens: tuple[int, ...] = ()
    """The decoder's prompt where a request has none; the first of them is the first of any."""
