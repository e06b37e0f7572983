"""The half beside the scheduler: notes what the cache and its tiers remember and forget, as it
happens. Keeps none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from builtin_plugins.features.kv_events.events import (
    DEVICE,
    Change,
    Cleared,
    Event,
    Removed,
    Stored,
    Writer,
)
from core.api import BlockKey

NAME: Final = "kv_events"


class Sender(Protocol):
    """Who takes changes."""

    def start(self, write: Callable[[list[Change]], list[Event]]) -> None:
        """Send from now on what `write` makes of changes."""

    def send(self, change: Change) -> None:
        """Take a change: a moment's work."""

    def close(self) -> None:
        """Send what is left, and end."""


class Watching:
    """Says of every key of the index when it can be found, once a step in flight has computed it,
    and when no longer.
    """

    name = NAME

    def __init__(self, sender: Sender, *, as_bytes: bool) -> None:
        self._sender = sender
        self._as_bytes = as_bytes
        self._num_in_tiers = 0

    def attach(self, scheduler: Any) -> None:
        """Begin with an empty cache: whoever knew another engine here forgets what that had."""
        kv = scheduler.kv
        self._sizes = [group.block_size for group in kv.layout.groups]
        self._link = kv.layout.hash_block_size
        self._found = [
            kv.pools[group.pool].find(index) for index, group in enumerate(kv.layout.groups)
        ]
        kv.watch(self._offered, self._forgotten)
        self._sender.start(Writer(kv.layout, as_bytes=self._as_bytes).events)
        self._sender.send(Cleared())

    def close(self) -> None:
        """Send what is left."""
        self._sender.close()

    def tier_changed(self, medium: str, key: BlockKey, has: bool) -> None:
        """A tier has a block from now on, or not any more.

        What it holds is not known but by its key.
        """
        if has:
            self._num_in_tiers += 1
            self._sender.send(Stored(medium, key.group, [key.key], None, []))
        else:
            self._num_in_tiers -= 1
            self._removed(medium, key.group, key.key)

    def _offered(self, lease: Any, tokens: Any, start: int) -> None:
        """Tell of blocks that this lease has put into the index, those in a row together."""
        for group, (size, table, found) in enumerate(
            zip(self._sizes, lease.tables, self._found, strict=True)
        ):
            links = size // self._link
            first = start // size
            end = lease.offered // size
            for place in range(first, end + 1):
                # A block whose key another one has already stays unknown, and so does what a window
                # has passed.
                if (
                    place < end
                    and table[place]
                    and found.get(lease.keys[(place + 1) * links - 1]) == table[place]
                ):
                    continue
                if place > first:
                    keys = lease.keys[(first + 1) * links - 1 : place * links : links]
                    parent = lease.keys[first * links - 1] if first else None
                    taken = [int(token) for token in tokens[first * size : place * size]]
                    self._sender.send(Stored(DEVICE, group, keys, parent, taken))
                first = place + 1

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        self._removed(DEVICE, group, key)

    def _removed(self, medium: str, group: int, key: bytes) -> None:
        gone = not self._num_in_tiers and not any(self._found)
        self._sender.send(Cleared() if gone else Removed(medium, group, key))
