"""Messages between two engines that exchange blocks: msgspec structs in ZeroMQ frames.

The token is never sent. Each side proves that it knows it, over nonces of both sides. Blocks are
sent in plain text: the network is trusted with their contents, but not to deliver them intact.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from builtin_plugins.kv_connectors.contract import BlockKey

VERSION: Final = 1
NONCE_BYTES: Final = 32
MAX_DIFFERENCES: Final = 2
"""Differing facts in an error; the others usually follow from the first."""
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Size limit of messages without a block; the facts of a layout are the longest."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """First message of a client."""

    version: int
    nonce: bytes


class Challenge(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The server's proof that it knows the token."""

    nonce: bytes
    proof: bytes


class Join(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The client's proof that it knows the token."""

    proof: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The connection is accepted. The client compares the layouts of both engines."""

    facts: str
    """Layout facts of the server, as JSON."""
    metadata: bytes = b""
    """Transport metadata of the server's memory; empty: blocks are sent on this connection."""


class Refused(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The server refuses a message."""

    reason: str


class Get(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A request for a block."""

    number: int
    """Sequence number on this connection."""
    key: BlockKey
    waits: bool
    """Wait a while for a block that is not stored yet."""


class BlockReply(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The block is the next frame, or lies at `address`."""

    number: int
    checksum: bytes
    address: int = 0
    """Address of the block in the server's memory, for a transport."""


class BlockMissing(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The server does not have the block."""

    number: int


FromClient = Hello | Join | Get
FromServer = Challenge | Welcome | Refused | BlockReply | BlockMissing


class PeerError(Exception):
    """Another engine is unreachable, or its blocks cannot be used here."""


class LayoutMismatch(PeerError):
    """Another engine has an incompatible block layout."""


def address_of(host: str, port: int) -> str:
    """Return a ZeroMQ address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def proof(token: bytes, side: str, hello: bytes, challenge: bytes) -> bytes:
    """Return the proof of one side ("client", "server") over both nonces."""
    return hmac.digest(token, b"engine-kv/" + side.encode() + b"/" + hello + challenge, "sha256")


def is_proof(given: bytes, token: bytes, side: str, hello: bytes, challenge: bytes) -> bool:
    """Verify a proof in constant time."""
    return hmac.compare_digest(given, proof(token, side, hello, challenge))


def as_json(facts: Mapping[str, Any]) -> str:
    """Return facts as sorted JSON."""
    return json.dumps(facts, sort_keys=True)


def check_facts(here: Mapping[str, Any], remote_json: str) -> None:
    """Raise `LayoutMismatch` naming the facts that differ, user settings first."""
    theirs = json.loads(remote_json)
    ours = json.loads(as_json(here))
    differences = [
        f"{name} is {theirs.get(name)!s:.60} there and {ours.get(name)!s:.60} here"
        for name in (*here, *(name for name in theirs if name not in ours))
        if ours.get(name) != theirs.get(name)
    ]
    if differences:
        raise LayoutMismatch(f"{', '.join(differences[:MAX_DIFFERENCES])}; start both alike")
