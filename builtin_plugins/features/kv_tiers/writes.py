"""Writes: stores blocks in the tier once the step that computed them has returned."""

from __future__ import annotations

from typing import Any

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.in_flight import InFlightTable, InFlightTransfer
from builtin_plugins.features.kv_tiers.messages import BlockTransfer
from builtin_plugins.features.kv_tiers.tier_index import TierIndex
from builtin_plugins.kv_connectors.api import BlockKey


class BlockWrites:
    """The pending writes of one tier."""

    def __init__(
        self, scheduler: Any, index: TierIndex, in_flight: InFlightTable, breaker: CircuitBreaker
    ) -> None:
        """`breaker`: the circuit breaker of writes."""
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._index = index
        self._in_flight = in_flight
        self._breaker = breaker
        self._block_sizes = [group.block_size for group in self._kv.layout.groups]
        self._hash_size = self._kv.layout.hash_block_size
        self.num_stored = 0
        """Blocks stored since the start."""
        self.num_failures = 0
        """Blocks that could not be stored."""
        self.pending: dict[BlockKey, int] = {}
        """Step that must return before a block is written, by cache key."""

    def on_published(self, lease: Any, start: int) -> None:
        """Queue the blocks that a request's step computes from position `start` on."""
        step = self._kv.issued + 1
        for group, (size, table) in enumerate(zip(self._block_sizes, lease.tables, strict=True)):
            hashes_per_block = size // self._hash_size
            for index in range(start // size, lease.num_published // size):
                key = BlockKey(group, lease.keys[(index + 1) * hashes_per_block - 1])
                if table[index] and not self._index.directory.holds(self._index.store_key(*key)):
                    self.pending.setdefault(key, step)

    def allowed(self, step: int) -> bool:
        """Return whether writes may begin in this step."""
        return self._breaker.allows(step)

    def begin(self, step: int, max_inflight_bytes: int) -> list[BlockTransfer]:
        """Begin writes until `max_inflight_bytes` are in flight."""
        begun: list[BlockTransfer] = []
        while (
            self.pending and self._in_flight.num_bytes < max_inflight_bytes and self.allowed(step)
        ):
            key = next(iter(self.pending))
            if self.pending[key] > self._kv.returned:
                break
            del self.pending[key]
            item = self._prepare(key)
            if item is not None:
                begun.append(self._in_flight.begin(item))
        return begun

    def _prepare(self, key: BlockKey) -> InFlightTransfer | None:
        """Pin a block that is still cached. Return its write, or None without room for it."""
        pool = self._kv.pools[self._kv.layout.groups[key.group].pool]
        block = pool.cached_blocks(key.group).get(key.key)
        store_key = self._index.store_key(*key)
        if block is None or not self._index.admit(store_key):
            return None
        item = self._in_flight.make(store_key, block, None, self._breaker)
        tables: list[list[int]] = [[] for _ in self._block_sizes]
        tables[key.group].append(block)
        self._scheduler.pin(self._in_flight.lease_name(item.transfer.id), tables)
        return item

    def on_done(self, item: InFlightTransfer) -> None:
        """Unpin a block that all ranks have written, and count the result."""
        self._scheduler.release(self._in_flight.lease_name(item.transfer.id))
        if item.failure:
            self.num_failures += 1
            self._index.discard(item.transfer.key)
        else:
            self.num_stored += 1
            self._index.directory.mark_stored(item.transfer.key)
