"""The prefix hash chain: block keys, which identify cached keys and values.

A link's key is the SHA-256 of its parent's key, its tokens, and the contents that its
placeholder tokens represent. The root is the SHA-256 of domain-tagged facts: model
identity, cache salt, and contents that the whole request depends on. Equal keys mean
equal contents.
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
    """Return the parent key of the first link.

    `extras` are (domain, content hash) pairs in any order.
    """
    facts = (("model", identity.encode()), ("salt", salt.encode()), *sorted(extras))
    tagged = b"".join(_fact(tag, value) for tag, value in facts)
    return hashlib.sha256(_DOMAIN + tagged).digest()


def span_extra_keys(spans: Iterable[Span], size: int) -> dict[int, bytes]:
    """Return the extra bytes that links of `size` tokens hash, by
    link index.
    """
    extra_keys: dict[int, bytes] = {}
    for span in sorted(spans):
        extent = span.start.to_bytes(8, "little") + span.length.to_bytes(8, "little")
        fact = extent + _fact(span.domain, span.content_hash)
        end = span.start + span.length
        for link in range(span.start // size, -(-end // size)):
            extra_keys[link] = extra_keys.get(link, b"") + fact
    return extra_keys


def _fact(tag: str, value: bytes) -> bytes:
    # Length-prefixed, so different lists of facts never encode to the same bytes.
    name = tag.encode()
    name_length = len(name).to_bytes(8, "little")
    return name_length + name + len(value).to_bytes(8, "little") + value


def extend_chain(
    keys: list[bytes],
    root: bytes,
    tokens: Tokens,
    size: int,
    num_links: int,
    extra_keys: Mapping[int, bytes],
) -> None:
    """Append keys until the chain has `num_links` links of `size` tokens.

    Tokens of existing links are not hashed again.
    """
    done = len(keys)
    if done >= num_links:
        return
    sha256 = hashlib.sha256
    parent = keys[-1] if keys else root
    fresh = tokens[done * size : num_links * size]
    # Arrays already have the bytes; lists are converted.
    data = fresh.tobytes() if hasattr(fresh, "tobytes") else array("I", fresh)
    links: Iterable[tuple[bytes]] = iter_unpack(f"{4 * size}s", data)
    if extra_keys:
        # A link's tokens have a fixed length, so extra bytes cannot be mistaken for
        # tokens.
        links = ((link + extra_keys.get(i, b""),) for i, (link,) in enumerate(links, done))
    for (link,) in links:
        parent = sha256(parent + link).digest()
        keys.append(parent)
