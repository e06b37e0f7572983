"""What one request holds of the KV cache, and what a prefix lookup found for
it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NEVER: Final = sys.maxsize
"""Position or step of something that has not happened."""


class KVTrust(Enum):
    """How far keys and values that were loaded from elsewhere can be used."""

    VERIFIED = "verified"
    """Correct, or computed here."""
    PENDING = "pending"
    """Loaded, and not yet confirmed: usable by the request, not published to
    others.
    """
    INVALID = "invalid"
    """Wrong: to be computed again."""


class Load(NamedTuple):
    """A block to be filled by the KV tier that holds the key."""

    group: int
    key: bytes
    block: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix hit: cached tokens, and the blocks that the next token reads
    of them.
    """

    num_tokens: int = 0
    blocks: Sequence[Sequence[int]] = ()
    """Blocks per group, from the first visible one on; 0 for a block that
    only a tier holds.
    """
    num_local: int = 0
    """Leading tokens before the first block that only a tier holds."""

    @property
    def loads(self) -> bool:
        """Whether a tier must load any block."""
        return self.num_local < self.num_tokens


NO_HIT: Final = Hit()


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks of one request.

    Created by `KVManager.open_lease`, changed by the manager only.
    """

    root: bytes
    tables: list[list[int]]
    """Block table per group; 0 for positions outside the window."""
    first: list[int]
    """Index of the first block held, per group."""
    capacity: int = 0
    """Tokens that have a slot in every group."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of the prefix hash chain computed so far."""
    extra_keys: Mapping[int, bytes] = field(default_factory=dict)
    """Bytes that keys cover besides tokens, by link (see
    `core.kv.prefix`).
    """
    num_published: int = 0
    """Leading tokens with blocks in the prefix cache."""
    num_encoder_positions: int = 0
    """Encoder positions, which hold blocks in the cross-attention groups from
    admission to end.
    """
    num_hit: int = 0
    """Leading tokens found in the prefix cache at the last admission."""
    published_since: int = NEVER
    """Last step issued before the first publication since the last
    admission.
    """
    first_unverified: int = NEVER
    """First position that depends on an unconfirmed load; never published."""
    loads: list[Load] = field(default_factory=list)
    """Blocks that tiers must fill for the last admission."""

    @property
    def trust(self) -> KVTrust:
        """Whether everything the lease holds is confirmed."""
        return KVTrust.VERIFIED if self.first_unverified == NEVER else KVTrust.PENDING
