"""CurveZMQ keys of head and nodes, derived from a secret that all of them have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import zmq
from zmq.utils import z85

from core.api import ConfigError
from core.api.config import read_option_bytes

MIN_BYTES: Final = 32
"""Shortest secret."""
MAX_KEY_BYTES: Final = 1 << 16
"""Size limit of the file."""
ADVICE: Final = "Make one with `openssl rand -hex 32 > FILE` and copy it to every node."


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CurveZMQ key pair in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """The key pairs of the head and of all nodes."""

    head: KeyPair
    node: KeyPair


def read_keys(path: str | None) -> NodeKeys:
    """Return the keys that `--node-key` stands for. Raises `ConfigError` without a secret."""
    if path is None:
        raise ConfigError(
            f"--node-key: got nothing; expected a file with the secret of all nodes. {ADVICE}"
        )
    secret = read_option_bytes("--node-key", path, MAX_KEY_BYTES, ADVICE).strip()
    if len(secret) < MIN_BYTES:
        raise ConfigError(
            f"--node-key: got {len(secret)} bytes in {path}; expected at least {MIN_BYTES}. "
            f"{ADVICE}"
        )
    return NodeKeys(_key_pair(secret, b"head"), _key_pair(secret, b"node"))


def _key_pair(secret: bytes, role: bytes) -> KeyPair:
    """Return a key pair; a Curve25519 secret key is any 32 bytes."""
    key = z85.encode(hashlib.blake2b(secret, digest_size=32, person=role).digest())
    return KeyPair(zmq.curve_public(key), key)
