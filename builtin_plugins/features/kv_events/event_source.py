"""Scheduler half: reports the block changes of the prefix cache and its tiers as they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from builtin_plugins.features.kv_events.events import (
    DEVICE,
    Change,
    Cleared,
    Event,
    EventEncoder,
    Removed,
    Stored,
)
from builtin_plugins.kv_connectors.api import BlockKey
from core.api import InvalidRequest

NAME: Final = "kv_events"


class Sender(Protocol):
    """Receives changes."""

    def start(self, to_events: Callable[[list[Change]], list[Event]]) -> None:
        """Start sending. `to_events`: converts changes to events."""

    def send(self, change: Change) -> None:
        """Queue a change. Must be cheap."""

    def close(self) -> None:
        """Send what is queued, and end."""


class EventSource:
    """Reports each block key of the prefix index when it can be found, and when no longer."""

    name = NAME

    def __init__(self, sender: Sender, *, as_bytes: bool) -> None:
        """`as_bytes`: publish whole block hashes instead of integers."""
        self._sender = sender
        self._as_bytes = as_bytes
        self._num_in_tiers = 0

    def attach(self, scheduler: Any) -> None:
        """Listen to the cache. Subscribers first learn that it is empty."""
        kv = scheduler.kv
        layout = kv.layout
        self._block_sizes = [group.block_size for group in layout.groups]
        self._hash_size = layout.hash_block_size
        self._identity = kv.identity
        self._cached = [
            kv.pools[group.pool].cached_blocks(index) for index, group in enumerate(layout.groups)
        ]
        kv.add_listener(self._on_published, self._on_removed)
        self._sender.start(EventEncoder(layout, as_bytes=self._as_bytes).events)
        self._sender.send(Cleared())

    def call(self, verb: str, data: bytes) -> bytes:
        """Return the facts that block keys depend on, as JSON, for `kv_events.chain`."""
        if verb != "chain":
            raise InvalidRequest("name", f"got {NAME}.{verb:.100}; expected {NAME}.chain.")
        return msgspec.json.encode({"identity": self._identity, "link_tokens": self._hash_size})

    def close(self) -> None:
        """Send what is queued."""
        self._sender.close()

    def tier_changed(self, medium: str, key: BlockKey, has: bool) -> None:
        """Report that a tier got or lost a block. Only the block's key is known."""
        if has:
            self._num_in_tiers += 1
            self._sender.send(Stored(medium, key.group, [key.key], None, []))
        else:
            self._num_in_tiers -= 1
            self._remove(medium, key.group, key.key)

    def _on_published(self, lease: Any, tokens: Any, start: int) -> None:
        """Report the blocks that a lease has added to the index, as runs of neighbours."""
        for group, (size, table, cached) in enumerate(
            zip(self._block_sizes, lease.tables, self._cached, strict=True)
        ):
            hashes_per_block = size // self._hash_size
            first = start // size
            end = min(lease.num_published // size, len(table))  # cross groups have fewer
            for index in range(first, end + 1):
                # Not in the index: blocks with the key of an earlier block, and blocks that the
                # attention window has passed.
                if (
                    index < end
                    and table[index]
                    and cached.get(lease.keys[(index + 1) * hashes_per_block - 1]) == table[index]
                ):
                    continue
                if index > first:
                    first_hash = (first + 1) * hashes_per_block - 1
                    end_hash = index * hashes_per_block
                    keys = lease.keys[first_hash:end_hash:hashes_per_block]
                    parent = lease.keys[first * hashes_per_block - 1] if first else None
                    run_tokens = [int(token) for token in tokens[first * size : index * size]]
                    self._sender.send(Stored(DEVICE, group, keys, parent, run_tokens))
                first = index + 1

    def _on_removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        self._remove(DEVICE, group, key)

    def _remove(self, medium: str, group: int, key: bytes) -> None:
        is_empty = not self._num_in_tiers and not any(self._cached)
        self._sender.send(Cleared() if is_empty else Removed(medium, group, key))
