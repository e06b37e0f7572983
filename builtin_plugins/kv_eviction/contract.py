"""What an eviction order of free KV blocks is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from core.api.kv import FreeBlocks


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request's retention of the blocks it leaves (`kv_retention`).

    Validated at admission.
    """

    priority: int = 50
    """0 to 100; lower priorities are evicted first.

    The default of all blocks is 50.
    """
    duration_s: float = 300.0
    """Seconds after the request's end for which a priority above 50 holds."""
    first_tokens: int | None = None
    """Number of leading tokens it applies to; the others have 50.

    None: all, with the output.
    """


class EvictionOrder(FreeBlocks, Protocol):
    """The eviction order of one pool, with hints about blocks that hold
    cached prefixes.
    """

    def touch(self, blocks: Sequence[int], retention: Retention | None, now_s: float) -> None:
        """A request with these blocks, from its start on, has ended.

        Time is that of the newest request, so that a replay evicts the same blocks; it
        never decreases.
        """

    def invalidate(self, block: int) -> None:
        """The contents of a block can no longer be found."""


class KVEviction(Protocol):
    """Target of a `kv_eviction` entry.

    Constructed with the `EngineConfig`, if it takes one.
    """

    def order(self, num_blocks: int) -> EvictionOrder:
        """Return the empty order of a pool with this many blocks."""
