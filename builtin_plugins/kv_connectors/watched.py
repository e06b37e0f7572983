"""A directory that tells others what it has and has lost. Decides nothing."""

from __future__ import annotations

from collections.abc import Container, Sequence

from core.api import BlockKey, KVDirectory
from core.contracts.kv_watchers import Watcher


class WatchedDirectory:
    """Another directory, as it is."""

    def __init__(self, inner: KVDirectory, medium: str, watchers: Sequence[Watcher]) -> None:
        self._inner, self._medium, self._watchers = inner, medium, watchers
        self.holds = inner.holds  # asked most often
        self.used = inner.used

    @property
    def most_bytes(self) -> int:
        """Bytes it may hold."""
        return self._inner.most_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes it holds."""
        return self._inner.num_bytes

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room, and tell of those that go for it."""
        going = self._inner.admit(key, pinned)
        for gone in going or ():
            self._tell(gone, has=False)
        return going

    def stored(self, key: BlockKey) -> None:
        """Tell that it is there."""
        self._inner.stored(key)
        self._tell(key, has=True)

    def lost(self, key: BlockKey) -> None:
        """Tell that it is not there any more, if it was."""
        if self.holds(key):
            self._tell(key, has=False)
        self._inner.lost(key)

    def _tell(self, key: BlockKey, *, has: bool) -> None:
        for watcher in self._watchers:
            watcher(self._medium, key, has)
