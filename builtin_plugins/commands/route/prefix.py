"""Which engine has seen the beginning of a prompt: by keys of its pieces, each of which stands for
all before it, too.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

PIECE_BYTES: Final = 256
MOST_PIECES: Final = 4096
"""Of one prompt: what is behind them does not choose an engine."""
MOST_KEYS: Final = 1 << 17
"""Remembered of one engine; what was used last is kept."""


def prefix_keys(body: Mapping[str, Any]) -> list[bytes]:
    """Return the keys of a request's prompt, or of its messages, as far as they are whole pieces."""
    said = body.get("messages") or body.get("prompt") or body.get("input") or ""
    text = said.encode() if isinstance(said, str) else msgspec.json.encode(said)
    facts = [body.get(name) for name in ("model", "cache_salt", "tools", "system")]
    parent = hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).digest()
    keys = []
    for at in range(0, min(len(text), MOST_PIECES * PIECE_BYTES) - PIECE_BYTES + 1, PIECE_BYTES):
        parent = hashlib.blake2b(parent + text[at : at + PIECE_BYTES], digest_size=16).digest()
        keys.append(parent)
    return keys


class Seen:
    """The keys that one engine has been sent."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def match(self, keys: Sequence[bytes]) -> int:
        """Return how many leading keys it has been sent before."""
        return next((place for place, key in enumerate(keys) if key not in self._keys), len(keys))

    def add(self, keys: Sequence[bytes]) -> None:
        """It is sent these; the first of them are kept the longest."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > MOST_KEYS:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """It has been away and has forgotten them."""
        self._keys.clear()
