"""A directory that tells others what it has and has lost. Decides nothing."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from core.api import BlockKey
from core.contracts.kv_watchers import Watcher


class WatchedDirectory:
    """Another directory, as it is."""

    def __init__(self, inner: Any, medium: str, watchers: Sequence[Watcher]) -> None:
        self._inner = inner
        self._medium = medium
        self._watchers = watchers
        self.holds = inner.holds  # asked most often

    def __getattr__(self, name: str) -> Any:
        return getattr(
            self._inner, name
        )  # what tells of no change, and what only some directories have

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room, and tell of those that go for it."""
        going: list[BlockKey] | None = self._inner.admit(key, pinned)
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
