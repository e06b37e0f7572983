"""A directory of blocks with a byte limit, and its cache policies (LRU and ARC)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Literal, Protocol

from builtin_plugins.kv_connectors.contract import BlockKey

PolicyName = Literal["lru", "arc"]


class CachePolicy(Protocol):
    """The held blocks, in eviction order."""

    def __contains__(self, key: BlockKey) -> bool:
        """Return whether a block is held."""

    def __iter__(self) -> Iterator[BlockKey]:
        """Yield the held blocks, the next to evict first."""

    def add(self, key: BlockKey) -> None:
        """Add a block that is not held."""

    def touch(self, key: BlockKey) -> None:
        """Count a use of a held block."""

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """Remove a held block. `evicted`: it made room for another."""


class LRUPolicy:
    """Evicts the least recently used block."""

    def __init__(self) -> None:
        self._keys: OrderedDict[BlockKey, None] = OrderedDict()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(self._keys)

    def add(self, key: BlockKey) -> None:
        """Add a block at the end of the queue."""
        self._keys[key] = None

    def touch(self, key: BlockKey) -> None:
        """Move a block to the end of the queue."""
        self._keys.move_to_end(key)

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """Remove a block."""
        del self._keys[key]


class ARCPolicy:
    """Adaptive replacement cache (ARC, Megiddo and Modha 2003).

    Blocks used once and blocks used repeatedly are two LRU lists. Hits on recently evicted keys
    adapt the split, so a scan of one-time prompts does not evict frequently used blocks.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[BlockKey, None] = OrderedDict()
        self._frequent: OrderedDict[BlockKey, None] = OrderedDict()
        self._recent_ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._recent_target = 0.0
        """Target length of the list of blocks used once."""

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._recent or key in self._frequent

    def __len__(self) -> int:
        return len(self._recent) + len(self._frequent)

    def __iter__(self) -> Iterator[BlockKey]:
        surplus = max(0, len(self._recent) - int(self._recent_target))
        recent = self._recent
        return chain(islice(recent, surplus), self._frequent, islice(recent, surplus, None))

    def add(self, key: BlockKey) -> None:
        """Add a block. A recently evicted key adapts the split."""
        if key in self._recent_ghosts:
            ratio = len(self._frequent_ghosts) / len(self._recent_ghosts)
            self._recent_target = min(len(self) + 1.0, self._recent_target + max(1.0, ratio))
            del self._recent_ghosts[key]
            self._frequent[key] = None
        elif key in self._frequent_ghosts:
            ratio = len(self._recent_ghosts) / len(self._frequent_ghosts)
            self._recent_target = max(0.0, self._recent_target - max(1.0, ratio))
            del self._frequent_ghosts[key]
            self._frequent[key] = None
        else:
            self._recent[key] = None

    def touch(self, key: BlockKey) -> None:
        """Move a block to the end of the frequent list."""
        self._recent.pop(key, None)
        self._frequent[key] = None
        self._frequent.move_to_end(key)

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """Remove a block. The keys of evicted blocks are remembered."""
        if key in self._recent:
            held = self._recent
            ghosts = self._recent_ghosts
        else:
            held = self._frequent
            ghosts = self._frequent_ghosts
        del held[key]
        if evicted:
            ghosts[key] = None
            while len(ghosts) > len(self) + 1:  # no more ghosts than held blocks
                ghosts.popitem(last=False)


CACHE_POLICIES: Final[dict[PolicyName, type[LRUPolicy | ARCPolicy]]] = {
    "lru": LRUPolicy,
    "arc": ARCPolicy,
}


class BoundedDirectory:
    """A `KVDirectory` with a byte limit. The policy decides what to evict."""

    def __init__(self, capacity_bytes: int, group_bytes: Sequence[int], policy: PolicyName) -> None:
        """`group_bytes`: bytes of a block, by KV group."""
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._group_bytes = group_bytes
        self._policy = CACHE_POLICIES[policy]()
        self._admitted: set[BlockKey] = set()
        """Blocks with room that are not stored yet."""

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block is stored."""
        return key in self._policy

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room for a block. Return the evicted ones; None: no room, or already there."""
        size = self._group_bytes[key.group]
        if key in self._policy or key in self._admitted:
            return None
        evicted = []
        missing = self.num_bytes + size - self.capacity_bytes
        if missing > 0:
            for other in self._policy:
                if other not in pinned:
                    evicted.append(other)
                    missing -= self._group_bytes[other.group]
                    if missing <= 0:
                        break
            else:
                return None
        for other in evicted:
            self._policy.remove(other, evicted=True)
            self.num_bytes -= self._group_bytes[other.group]
        self.num_bytes += size
        self._admitted.add(key)
        return evicted

    def mark_stored(self, key: BlockKey) -> None:
        """Hold an admitted block."""
        self._admitted.remove(key)
        self._policy.add(key)

    def touch(self, key: BlockKey) -> None:
        """Count a use of a block, if it is held."""
        if key in self._policy:
            self._policy.touch(key)

    def discard(self, key: BlockKey) -> None:
        """Remove a block, if it is held or admitted."""
        if key in self._policy:
            self._policy.remove(key, evicted=False)
        elif key in self._admitted:
            self._admitted.remove(key)
        else:
            return
        self.num_bytes -= self._group_bytes[key.group]
