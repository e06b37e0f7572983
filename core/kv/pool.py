"""Blocks of one size: who is free, who is referenced, and which keep a prefix worth finding.

Knows no request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from core.contracts.kv_eviction import FreeBlocks
from core.kv.layout import NULL_BLOCKS

Forgotten = Callable[[int, bytes, int, bool], None]
"""Takes group, key and block of what is found no more, and whether what the block holds, until it
is taken, is right.
"""


class BlockPool:
    """Reference-counted blocks; every operation is O(1) per block, as far as that of the free ones'
    order is.

    A block whose count falls to zero keeps its prefix key and goes to those that are free, by
    default to their end; it can be found and revived until it is taken from the front. Block 0 is
    the null block: never taken, never counted.
    """

    __slots__ = (
        "_found",
        "_key",
        "_next_fresh",
        "_stamp",
        "forgotten",
        "free",
        "num_blocks",
        "num_free",
        "refs",
    )

    def __init__(self, num_blocks: int, groups: Iterable[int]) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - NULL_BLOCKS
        """Blocks that can be taken, cached ones included."""
        self.refs = [0] * num_blocks
        """Leases that hold each block."""
        self._key: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._stamp = [0] * num_blocks
        self._found: dict[int, dict[bytes, int]] = {group: {} for group in groups}
        self.free: FreeBlocks = OrderedDict()
        """Those that nobody holds and that were used, in the order in which they go. Who orders
        them otherwise puts another in
        its place, with the same blocks."""
        self._next_fresh = NULL_BLOCKS
        """Blocks from here on were never used; they come before the queue."""
        self.forgotten: list[Forgotten] = []
        """Told of what is found no more."""

    def take(self, count: int) -> list[int]:
        """Return `count` blocks with one reference each; the caller has seen `num_free`.

        Forgets their old keys.
        """
        self.num_free -= count
        fresh = min(count, self.num_blocks - self._next_fresh)
        blocks = list(range(self._next_fresh, self._next_fresh + fresh))
        self._next_fresh += fresh
        for _ in range(count - fresh):
            blocks.append(self.free.popitem(last=False)[0])
            self.forget(blocks[-1], right=True)
        for block in blocks:
            self.refs[block] = 1
        return blocks

    def give(self, blocks: Sequence[int]) -> None:
        """Drop one reference each. Last block first: it is the one least likely to be shared again."""
        refs = self.refs
        free = self.free
        before = len(free)
        for block in reversed(blocks):
            refs[block] -= 1
            if not refs[block]:
                free[block] = None
        self.num_free += len(free) - before

    def touch(self, blocks: Iterable[int]) -> None:
        """Add one reference each, reviving those that were free."""
        refs = self.refs
        free = self.free
        before = len(free)
        for block in blocks:
            if not refs[block]:
                del free[block]
            refs[block] += 1
        self.num_free += len(free) - before

    def find(self, group: int) -> dict[bytes, int]:
        """Return the map from key to block of one group; read it, never change it."""
        return self._found[group]

    def remember(
        self, group: int, keys: Sequence[bytes], blocks: Sequence[int], stamp: int = 0
    ) -> None:
        """Make blocks findable; where another has the key already, that one stays the one found. 0
        is none.

        `stamp` never falls from one call to the next.
        """
        found = self._found[group]
        known = self._key
        for key, block in zip(keys, blocks, strict=True):
            if block and known[block] is None and found.setdefault(key, block) == block:
                known[block] = (group, key)
                self._stamp[block] = stamp

    def forget(self, block: int, *, right: bool = False) -> None:
        """Make `block` unfindable; does nothing if it already is.

        `right`: not because of what it holds.
        """
        entry = self._key[block]
        if entry is not None:
            del self._found[entry[0]][entry[1]]
            self._key[block] = None
            for tell in self.forgotten:
                tell(*entry, block, right)

    def forget_since(self, stamp: int, *, right: bool = False) -> None:
        """Make every block unfindable that was remembered with `stamp` or a later one; 0: every
        one.
        """
        for found in self._found.values():
            # A map is in the order of its stamps, and nothing older is looked at.
            for block in list(
                takewhile(lambda b: self._stamp[b] >= stamp, reversed(found.values()))
            ):
                self.forget(block, right=right)

    def check(self, expected_refs: Sequence[int]) -> None:
        """Assert that counts are exactly `expected_refs`, and queue and maps agree with them."""
        assert self.refs == list(expected_refs), "reference counts differ from the leases"
        assert self.refs[0] == 0, "the null block was given out"
        free = {b for b in range(NULL_BLOCKS, self._next_fresh) if not self.refs[b]}
        assert free == set(self.free), "the free queue differs from the unreferenced blocks"
        assert self.num_free == len(free) + self.num_blocks - self._next_fresh, (
            "the number of free blocks is wrong"
        )
        keyed = {(g, k): b for g, found in self._found.items() for k, b in found.items()}
        assert keyed == {e: b for b, e in enumerate(self._key) if e is not None}, (
            "keys and maps disagree"
        )
