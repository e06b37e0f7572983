"""What two engines say to each other before and while blocks move. msgspec structs in ZeroMQ
frames; nothing is unpickled.

The token never travels: each side proves that it knows it, over numbers that both have chosen for
this connection. Bytes of blocks travel as they are, so the network is trusted not to look, and not
trusted to deliver.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api import BlockKey

VERSION: Final = 1
NONCE_BYTES: Final = 32
MOST_TOLD: Final = 2
"""Facts: most follow from the first."""
MOST_BYTES: Final = 1 << 20
"""Of a message that is no block: facts of a layout are the longest."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Who wants blocks begins."""

    version: int
    nonce: bytes


class Challenge(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Who has blocks proves that it knows the token."""

    nonce: bytes
    proof: bytes


class Join(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Who wants blocks proves it, too."""

    proof: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Blocks may be asked for: how they are laid out here, as JSON."""

    facts: str
    introduction: bytes = b""
    """By which its memory is found by a `Wire`; empty: blocks are sent."""


class Refused(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """And why."""

    reason: str


class Get(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A block is wanted."""

    number: int
    """Of the request on its connection."""
    key: BlockKey
    waits: bool
    """For a while, if it is not there yet."""


class Here(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The next frame is the block, or it is read where it lies."""

    number: int
    seal: bytes
    address: int = 0
    """Where it begins, if it is read."""


class Gone(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """It is not there."""

    number: int


FromClient = Hello | Join | Get
FromServer = Challenge | Welcome | Refused | Here | Gone


class PeerError(Exception):
    """Another engine cannot be reached, or is not one whose blocks are of use here."""


class SetUpOtherwise(PeerError):
    """Its bytes would mean something else here."""


def address_of(host: str, port: int) -> str:
    """Return an address as ZeroMQ reads it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def proof(token: bytes, who: str, hello: bytes, challenge: bytes) -> bytes:
    """Return what only who knows the token can say of two nonces."""
    return hmac.digest(token, b"engine-kv/" + who.encode() + b"/" + hello + challenge, "sha256")


def is_proof(said: bytes, token: bytes, who: str, hello: bytes, challenge: bytes) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return hmac.compare_digest(said, proof(token, who, hello, challenge))


def as_json(facts: Mapping[str, Any]) -> str:
    """Return facts as they are told."""
    return json.dumps(facts, sort_keys=True)


def check_facts(here: Mapping[str, Any], told: str) -> None:
    """Raise `SetUpOtherwise` naming the facts in which the other engine differs, those that users
    set before others.
    """
    there = json.loads(told)
    mine = json.loads(as_json(here))
    unlike = [
        f"{name} is {there.get(name)!s:.60} there and {mine.get(name)!s:.60} here"
        for name in (*here, *(name for name in there if name not in mine))
        if mine.get(name) != there.get(name)
    ]
    if unlike:
        raise SetUpOtherwise(f"{', '.join(unlike[:MOST_TOLD])}; start both alike")
