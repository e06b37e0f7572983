"""The prefix hash chain: the one identity of cached keys and values, made by core and opaque to everyone else.

A link's key is SHA-256 over its parent's key and its tokens; the root is SHA-256 over domain-tagged facts
(model identity, salt, contents a request brings), so equal keys mean equal contents and nobody can invent one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence

_DOMAIN = b"engine.kv.1"


def chain_root(identity: str, salt: str, extras: Mapping[str, bytes]) -> bytes:
    """Return the parent of the first link; `extras` are content hashes (adapter, media) by domain tag."""
    digest = hashlib.sha256(_DOMAIN)
    for tag, value in (("model", identity.encode()), ("salt", salt.encode()), *sorted(extras.items())):
        name = tag.encode()
        # Lengths first: no choice of values can make two different lists of facts spell the same bytes.
        digest.update(len(name).to_bytes(8, "little") + name + len(value).to_bytes(8, "little") + value)
    return digest.digest()


def extend_chain(keys: list[bytes], root: bytes, tokens: Sequence[int], size: int, num_links: int) -> None:
    """Append keys until the chain has `num_links` links of `size` tokens each; hashes no token twice."""
    done = len(keys)
    if done >= num_links:
        return
    sha256 = hashlib.sha256
    parent = keys[-1] if keys else root
    width = 4 * size
    data = array("I", tokens[done * size : num_links * size]).tobytes()
    for at in range(0, len(data), width):
        parent = sha256(parent + data[at : at + width]).digest()
        keys.append(parent)
