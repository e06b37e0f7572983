"""Block pools: reference counts, the free queue, and prefix-cache keys of
blocks of one size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Protocol

from core.kv.layout import NULL_BLOCKS

KeyRemoved = Callable[[int, bytes, int, bool], None]
"""Takes (group, key, block, valid) of a block that leaves the prefix cache.

`valid`: the block's contents are correct until the block is reallocated.
"""


class FreeBlocks(Protocol):
    """The free blocks of one pool in eviction order, such as an
    `OrderedDict[int, None]`.

    Every method must be quick.
    """

    def __setitem__(self, block: int, nothing: None, /) -> None:
        """Add a block that has just become free."""

    def __delitem__(self, block: int, /) -> None:
        """Remove a block that is in use again."""

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Remove and return the next block to evict (`last` is False); there
        is one.
        """

    def __len__(self) -> int:
        """Return the number of free blocks."""

    def __iter__(self) -> Iterator[int]:
        """Yield all free blocks."""


class BlockPool:
    """Reference-counted blocks; operations are O(1) per block, except those
    of the free queue.

    When a block's count falls to zero, it keeps its prefix key and enters the free
    queue, by default at its end. Until it is reallocated, a prefix hit can revive it.
    Block 0 is the null block: it is never allocated and never counted.
    """

    __slots__ = (
        "_blocks_by_key",
        "_keys",
        "_next_fresh",
        "_stamps",
        "free_queue",
        "num_blocks",
        "num_free",
        "on_removed",
        "refs",
    )

    def __init__(self, num_blocks: int, groups: Iterable[int]) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - NULL_BLOCKS
        """Blocks that can be allocated, cached ones included."""
        self.refs = [0] * num_blocks
        """Number of leases that hold each block."""
        self._keys: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._stamps = [0] * num_blocks
        self._blocks_by_key: dict[int, dict[bytes, int]] = {group: {} for group in groups}
        self.free_queue: FreeBlocks = OrderedDict()
        """Used blocks without references, in eviction order.

        An eviction order replaces it with one that has the same blocks.
        """
        self._next_fresh = NULL_BLOCKS
        """First block never used; such blocks are allocated before the free
        queue.
        """
        self.on_removed: list[KeyRemoved] = []
        """Callbacks for blocks that leave the prefix cache."""

    def allocate(self, count: int) -> list[int]:
        """Return `count` blocks with one reference each, and evict their old
        keys.

        The caller has checked `num_free`.
        """
        self.num_free -= count
        fresh = min(count, self.num_blocks - self._next_fresh)
        blocks = list(range(self._next_fresh, self._next_fresh + fresh))
        self._next_fresh += fresh
        for _ in range(count - fresh):
            block = self.free_queue.popitem(last=False)[0]
            blocks.append(block)
            self.remove_key(block, valid=True)
        for block in blocks:
            self.refs[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference each, last block first: it is the least likely
        to be shared again.
        """
        refs = self.refs
        free = self.free_queue
        before = len(free)
        for block in reversed(blocks):
            refs[block] -= 1
            if not refs[block]:
                free[block] = None
        self.num_free += len(free) - before

    def touch(self, blocks: Iterable[int]) -> None:
        """Add one reference each; blocks in the free queue are revived."""
        refs = self.refs
        free = self.free_queue
        before = len(free)
        for block in blocks:
            if not refs[block]:
                del free[block]
            refs[block] += 1
        self.num_free += len(free) - before

    def cached_blocks(self, group: int) -> dict[bytes, int]:
        """Return the prefix cache of one group, key to block; read-only."""
        return self._blocks_by_key[group]

    def add_keys(
        self, group: int, keys: Sequence[bytes], blocks: Sequence[int], stamp: int = 0
    ) -> None:
        """Add blocks to the prefix cache; a key that exists keeps its block.
        0 is no block.

        `stamp` never decreases between calls.
        """
        cached = self._blocks_by_key[group]
        own_keys = self._keys
        for key, block in zip(keys, blocks, strict=True):
            if not block or own_keys[block] is not None:
                continue
            if cached.setdefault(key, block) == block:
                own_keys[block] = (group, key)
                self._stamps[block] = stamp

    def remove_key(self, block: int, *, valid: bool = False) -> None:
        """Remove `block` from the prefix cache, if it is there.

        `valid`: its contents are correct, so tiers may keep a copy.
        """
        entry = self._keys[block]
        if entry is None:
            return
        group, key = entry
        del self._blocks_by_key[group][key]
        self._keys[block] = None
        for removed in self.on_removed:
            removed(group, key, block, valid)

    def remove_keys_since(self, stamp: int, *, valid: bool = False) -> None:
        """Remove every block that was added with `stamp` or later; 0: every
        block.
        """
        stamps = self._stamps
        for cached in self._blocks_by_key.values():
            # A map is in stamp order, so older blocks are not visited.
            newest_first = reversed(cached.values())
            for block in list(takewhile(lambda b: stamps[b] >= stamp, newest_first)):
                self.remove_key(block, valid=valid)
