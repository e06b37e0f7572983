"""The index of the blocks that one tier holds."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from typing import Any

from builtin_plugins.kv_connectors.api import BlockKey, TierListener


class TierIndex:
    """The blocks of one tier on all ranks, by the keys that its stores use."""

    def __init__(self, directory: Any, num_ranks: int) -> None:
        """`directory`: the connector's `KVDirectory`."""
        self.directory = directory
        self.num_evicted = 0
        """Blocks evicted since the start."""
        self.pinned: Counter[BlockKey] = Counter()
        """Blocks being read, which must not be evicted."""
        self._num_ranks = num_ranks
        self._found: defaultdict[BlockKey, set[int]] = defaultdict(set)
        """Ranks that reported a block in a survey or lookup."""
        self._drops: list[BlockKey] = []
        self._domain = b""
        """Salt of the current weights (`WeightsReloaded.domain`)."""

    def store_key(self, group: int, key: bytes) -> BlockKey:
        """Return the key under which stores keep a cached block."""
        return BlockKey(group, hashlib.sha256(self._domain + key).digest() if self._domain else key)

    def set_domain(self, domain: bytes) -> None:
        """Salt the keys of all later blocks."""
        self._domain = domain

    def admit(self, key: BlockKey) -> bool:
        """Make room for a block. Return whether there is room."""
        evicted = self.directory.admit(key, self.pinned)
        if evicted is None:
            return False
        self._drops += evicted
        self.num_evicted += len(evicted)
        return True

    def discard(self, key: BlockKey) -> None:
        """Remove a block that is missing or invalid."""
        self.directory.discard(key)
        self._drops.append(key)

    def add_found(self, rank: int, keys: Sequence[BlockKey]) -> None:
        """Add blocks that one rank's store reported. A block is held once all ranks have it."""
        for key in keys:
            self._found[key].add(rank)
            if len(self._found[key]) < self._num_ranks:
                continue
            del self._found[key]
            if self.directory.holds(key):
                continue
            if hasattr(self.directory, "add_found"):
                self.directory.add_found(key)
            elif self.admit(key):
                self.directory.mark_stored(key)

    @property
    def has_drops(self) -> bool:
        """True if stores have blocks to drop."""
        return bool(self._drops)

    def pop_drops(self) -> list[BlockKey]:
        """Return the blocks to drop, and clear the list."""
        drops = self._drops
        self._drops = []
        return drops


class ObservedDirectory:
    """A directory that reports its changes to listeners. All else is the inner directory's."""

    def __init__(self, inner: Any, medium: str, listeners: Sequence[TierListener]) -> None:
        self._inner = inner
        self._medium = medium
        self._listeners = listeners
        self.holds = inner.holds  # the hottest method, so it skips `__getattr__`
        if hasattr(inner, "add_found"):
            self.add_found = self._add_found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room for a block, and report the evicted ones."""
        evicted: list[BlockKey] | None = self._inner.admit(key, pinned)
        for gone in evicted or ():
            self._notify(gone, has=False)
        return evicted

    def mark_stored(self, key: BlockKey) -> None:
        """Mark a block as stored, and report it."""
        self._inner.mark_stored(key)
        self._notify(key, has=True)

    def _add_found(self, key: BlockKey) -> None:
        self._inner.add_found(key)
        self._notify(key, has=True)

    def discard(self, key: BlockKey) -> None:
        """Remove a block, and report it if it was held."""
        if self.holds(key):
            self._notify(key, has=False)
        self._inner.discard(key)

    def _notify(self, key: BlockKey, *, has: bool) -> None:
        for listener in self._listeners:
            listener(self._medium, key, has)
