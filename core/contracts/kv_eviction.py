"""Which block of the device's cache goes first where a request needs one and none is left that was
never used.

Only blocks that nobody holds are asked about, so no order can take one from under a request, nor
keep one from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request says of the blocks that it leaves behind (`kv_retention`).

    Checked at the edge.
    """

    priority: int = 50
    """0 to 100. Lower ones go first; 50 is what everybody's blocks have who says nothing."""
    duration_s: float = 300.0
    """For so long after the request more than 50 counts; then it is 50."""
    first_tokens: int | None = None
    """Leading tokens that it is said of; the others have 50. None: all, the answer included."""


class FreeBlocks(Protocol):
    """The blocks of one pool that nobody holds, in the order in which they go: an `OrderedDict[int,
    None]`, or what does the
    same. Every method is a moment's work."""

    def __setitem__(self, block: int, nothing: None, /) -> None:
        """Nobody holds a block any more; it was not among them."""

    def __delitem__(self, block: int, /) -> None:
        """One of them is held again."""

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Let the block go that goes first (`last` is False); there is one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __iter__(self) -> Iterator[int]:
        """Yield all of them."""


class EvictionOrder(FreeBlocks, Protocol):
    """The order of one pool.

    What it is told besides is of blocks whose contents can be found, held or not.
    """

    def used(self, blocks: Sequence[int], said: Retention | None, now_s: float) -> None:
        """A request has ended that these blocks are of, from its beginning on; `said`: of these,
        None where it says nothing.

        Time is that of the newest request, so that a replay evicts the same; it never goes back.
        """

    def forgotten(self, block: int) -> None:
        """What a block holds is found no more."""


class KVEviction(Protocol):
    """Target of an entry of kind `kv_eviction`; constructed with the `EngineConfig`, if it takes an
    argument.
    """

    def order(self, num_blocks: int) -> EvictionOrder:
        """Return the order of a pool of so many blocks, of which it knows none yet."""
