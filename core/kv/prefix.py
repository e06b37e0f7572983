"""The prefix hash chain: the one identity of cached keys and values, made by core and opaque to
everyone else.

A link's key is SHA-256 over its parent's key, its tokens and the contents that stand behind those
of them that are placeholders; the root is SHA-256 over domain-tagged facts (model identity, salt,
contents that bear on the whole request). So equal keys mean equal contents, and nobody can invent
one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from struct import iter_unpack
from typing import Any

from core.step import Span

Tokens = Sequence[int] | Any
"""Token ids: a sequence, or an array of four-byte numbers."""

_DOMAIN = b"engine.kv.1"


def chain_root(identity: str, salt: str, extras: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the parent of the first link; `extras` are (domain, content hash) in any order."""
    facts = (("model", identity.encode()), ("salt", salt.encode()), *sorted(extras))
    return hashlib.sha256(_DOMAIN + b"".join(_fact(tag, value) for tag, value in facts)).digest()


def span_marks(spans: Iterable[Span], size: int) -> dict[int, bytes]:
    """Return what the links of `size` tokens hash besides their tokens, by index of the link."""
    marks: dict[int, bytes] = {}
    for span in sorted(spans):
        place = span.start.to_bytes(8, "little") + span.length.to_bytes(8, "little")
        for link in range(span.start // size, -(-(span.start + span.length) // size)):
            marks[link] = marks.get(link, b"") + place + _fact(span.domain, span.content_hash)
    return marks


def _fact(tag: str, value: bytes) -> bytes:
    # Lengths first: no choice of values can make two different lists of facts spell the same bytes.
    name = tag.encode()
    return len(name).to_bytes(8, "little") + name + len(value).to_bytes(8, "little") + value


def extend_chain(
    keys: list[bytes],
    root: bytes,
    tokens: Tokens,
    size: int,
    num_links: int,
    marks: Mapping[int, bytes],
) -> None:
    """Append keys until the chain has `num_links` links of `size` tokens each; hashes no token
    twice.
    """
    done = len(keys)
    if done >= num_links:
        return
    sha256 = hashlib.sha256
    parent = keys[-1] if keys else root
    fresh = tokens[done * size : num_links * size]
    # Columns of tokens have the bytes already; lists are made into them.
    data = fresh.tobytes() if hasattr(fresh, "tobytes") else array("I", fresh)
    links: Iterable[tuple[bytes]] = iter_unpack(f"{4 * size}s", data)
    if marks:
        # The tokens' length is fixed, so what stands behind them cannot be taken for tokens.
        links = ((link + marks.get(index, b""),) for index, (link,) in enumerate(links, done))
    for (link,) in links:
        parent = sha256(parent + link).digest()
        keys.append(parent)
