"""Scheduler half: one KV tier between the prefix cache and the worker halves.

Blocks are stored once the step that computed them has returned (`writes`). A request with a prefix
in the tier waits until all its blocks are loaded and verified (`reads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.errors import TIMED_OUT
from builtin_plugins.features.kv_tiers.in_flight import InFlightTable, InFlightTransfer
from builtin_plugins.features.kv_tiers.messages import (
    NAME,
    BlocksFound,
    LookupResult,
    StoreOpened,
    TransferPlan,
    TransfersTimedOut,
    WeightsReloaded,
    WorkerMessage,
)
from builtin_plugins.features.kv_tiers.metrics import TierStatus
from builtin_plugins.features.kv_tiers.reads import BlockReads
from builtin_plugins.features.kv_tiers.remote_lookup import RemoteLookup
from builtin_plugins.features.kv_tiers.remote_prefill import RemotePrefill
from builtin_plugins.features.kv_tiers.tier_index import ObservedDirectory, TierIndex
from builtin_plugins.features.kv_tiers.writes import BlockWrites
from builtin_plugins.kv_connectors.api import BlockKey, KVConnector, KVTransferConfig, TierListener
from core.api.execution import StepPlan

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerMessage).decode


class KVTierScheduler:
    """One tier: the blocks of one connector."""

    def __init__(
        self,
        connector: KVConnector,
        settings: KVTransferConfig,
        tensor_parallel_size: int,
        num_ranks: int,
        listeners: Sequence[TierListener] = (),
        *,
        name: str = NAME,
        above: Sequence[KVTierScheduler] = (),
    ) -> None:
        """`listeners`: notified when the tier gets or loses a block. `above`: faster tiers."""
        self.name = name
        self._above = above
        self._connector = connector
        self._settings = settings
        self._tensor_parallel_size = tensor_parallel_size
        self._num_ranks = num_ranks
        self._listeners = listeners
        self._can_load = settings.kv_role != "kv_producer"
        self._can_store = settings.kv_role != "kv_consumer"
        self._read_breaker = CircuitBreaker(settings.kv_connector, "reading")
        self._write_breaker = CircuitBreaker(settings.kv_connector, "writing")
        self._remote: RemotePrefill | None = None
        """None: the connector links no engines."""
        self._lookup: RemoteLookup | None = None
        """None: the stores are listed, or nothing is loaded."""
        self._open_requested = False
        """True once the worker halves got the request to open their stores."""
        self._open_ranks: set[int] = set()
        """Ranks with a ready store."""
        self._waiting_for_open: list[str] = []
        """Requests that wait for the stores to open."""
        self._weights_version = 0

    def attach(self, scheduler: Any) -> None:
        """Become a tier of the scheduler's prefix cache."""
        self._scheduler = scheduler
        kv = scheduler.kv
        layout = kv.layout
        self._kv = kv
        self._block_sizes = [group.block_size for group in layout.groups]
        self._hash_size = layout.hash_block_size
        block_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        connector = self._settings.kv_connector
        inner: Any = self._connector.directory(layout, self._tensor_parallel_size)
        medium = getattr(self._connector, "medium", connector)
        directory = ObservedDirectory(inner, medium, self._listeners) if self._listeners else inner
        self._index = index = TierIndex(directory, self._num_ranks)
        if hasattr(inner, "expect"):
            self._remote = RemotePrefill(inner, connector, scheduler, index.store_key)
        self._in_flight = in_flight = InFlightTable(self.name, block_bytes, self._num_ranks)
        self._writes = BlockWrites(scheduler, index, in_flight, self._write_breaker)
        if self._can_load and getattr(self._connector, "supports_lookup", False):
            breaker = CircuitBreaker(connector, "looking for blocks")
            self._lookup = RemoteLookup(scheduler, index, breaker, self._num_ranks)
        self._reads = BlockReads(
            scheduler,
            index,
            in_flight,
            self._read_breaker,
            self._remote,
            recomputes=self._settings.kv_load_failure_policy == "recompute",
        )
        self.status = TierStatus(
            connector, index, self._writes, self._reads, self._breakers, lambda: self._is_open
        )
        kv.add_listener(self._published, self._removed)
        kv.add_tier(self.holds)

    def _breakers(self) -> list[CircuitBreaker]:
        breakers = [self._read_breaker, self._write_breaker]
        if self._remote is not None:
            breakers += self._remote.breakers
        if self._lookup is not None:
            breakers.append(self._lookup.breaker)
        return breakers

    @property
    def _is_open(self) -> bool:
        return len(self._open_ranks) == self._num_ranks

    # --- prefix cache

    def holds(self, group: int, key: bytes) -> bool:
        """Return whether a block can be loaded from this tier now."""
        return self._can_load and self._is_open and self._reads.holds(group, key)

    def _published(self, lease: Any, tokens: Any, start: int) -> None:
        if self._can_store:
            self._writes.on_published(lease, start)

    def _removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        """Drop the pending write of an evicted block. Remove invalid blocks from the tier."""
        self._writes.pending.pop(BlockKey(group, key), None)
        if not valid:
            store_key = self._index.store_key(group, key)
            self._in_flight.invalidate(store_key)
            if self._index.directory.holds(store_key):
                self._index.discard(store_key)

    # --- requests

    def arrived(self, request: Any) -> None:
        """Register remote blocks of a request, and look up those that only stores know."""
        if self._remote is not None and self._can_load:
            self._remote.arrived(request)
        if self._lookup is not None:
            self._lookup.arrived(request)

    def may_start(self, request: Any) -> bool:
        """Return whether a request waits for no block. Raises `RequestFailed` after a failure."""
        may_start = self._reads.may_start(request.request_id)
        if self._can_load and not self._is_open:
            self._waiting_for_open.append(request.request_id)
            return False
        return may_start and (self._lookup is None or not self._lookup.waits(request.request_id))

    def load(self, request: Any, loads: Sequence[Any]) -> bool:
        """Read the blocks that no faster tier holds. The request waits for them."""
        own_loads = [
            each
            for each in loads
            if self.holds(each.group, each.key)
            and not any(tier.holds(each.group, each.key) for tier in self._above)
        ]
        if own_loads:
            self._reads.park(request, own_loads)
        return not own_loads

    def finished(self, request: Any) -> bool:
        """Touch the request's blocks, last block first. Return whether some stay pinned."""
        pins_blocks = self._remote is not None and self._remote.finished(
            request, self._writes.pending
        )
        self._reads.forget(request.request_id)
        if request.started and self._can_load:
            self._reads.missed_tokens += request.prompt_len - request.num_cached
        if self._lookup is not None:
            self._lookup.forget(request.request_id)
        num_tokens = min(request.num_cached, len(request.keys) * self._hash_size)
        for group, size in enumerate(self._block_sizes):
            hashes_per_block = size // self._hash_size
            for index in reversed(range(num_tokens // size)):
                key = request.keys[(index + 1) * hashes_per_block - 1]
                self._index.directory.touch(self._index.store_key(group, key))
        return pins_blocks

    # --- steps

    def pending(self) -> bool:
        """Return whether a plan without rows would carry anything."""
        if not self._is_open:
            return not self._open_requested
        has_room = self._in_flight.num_bytes < self._settings.max_inflight_bytes
        if self._lookup is not None and self._lookup.unsent:
            return True
        if self._index.has_drops or (self._reads.has_queued and has_room):
            return True
        if not self._write_breaker.allows(self._kv.issued + 1):
            return self._remote is not None and self._remote.holds_blocks
        return bool(self._writes.pending) and has_room

    def planned(self, plan: StepPlan) -> bytes | None:
        """Begin the transfers of this step: first reads that requests wait for, then writes."""
        if not self._is_open:
            is_first = not self._open_requested
            self._open_requested = True
            return _encode(TransferPlan()) if is_first else None
        max_bytes = self._settings.max_inflight_bytes
        computes = bool(plan.decode_rows or plan.rows)
        # A pure prefill engine has no decode streams to slow down.
        if computes and self._can_load:
            step_limit = self._in_flight.num_bytes + self._settings.max_bytes_per_step
            max_bytes = min(max_bytes, step_limit)
        reads = self._reads.begin(max_bytes)
        writes = self._writes.begin(plan.step, max_bytes)
        if self._remote is not None:
            self._remote.release_written(
                self._writes.pending, can_write=self._write_breaker.allows(plan.step)
            )
        drops = self._index.pop_drops()
        lookups = [] if self._lookup is None else self._lookup.pop_unsent()
        if not (reads or writes or drops or lookups):
            return None
        return _encode(TransferPlan(reads, writes, drops, self._weights_version, lookups))

    # --- messages of the worker halves

    def result(self, payload: bytes) -> None:
        """Handle a message of one rank's worker half."""
        message = _decode(payload)
        if isinstance(message, StoreOpened):
            self._on_opened(message.rank)
        elif isinstance(message, BlocksFound):
            self._index.add_found(message.rank, message.keys)
        elif isinstance(message, LookupResult):
            if self._lookup is not None:
                self._lookup.on_lookup_result(message)
        elif isinstance(message, TransfersTimedOut):
            self._on_timeout(message)
        elif isinstance(message, WeightsReloaded):
            self._on_weights_reloaded(message)
        else:
            for id_ in message.ids:
                error = message.errors.get(id_, "")
                self._finish(self._in_flight.rank_done(message.rank, id_, error, self._kv.issued))
        if self._reads.has_queued:
            self._reads.cancel_blocked()

    def _on_opened(self, rank: int) -> None:
        self._open_ranks.add(rank)
        if self._is_open:
            waiting = self._waiting_for_open
            self._waiting_for_open = []
            for request_id in waiting:
                self._scheduler.wake(request_id)

    def _on_weights_reloaded(self, message: WeightsReloaded) -> None:
        """Salt the keys of later blocks, with the first rank's salt."""
        if message.rank == 0:
            self._weights_version = message.version
            self._index.set_domain(message.domain)
            self._writes.pending.clear()
            self._reads.cancel_all()

    def _on_timeout(self, message: TransfersTimedOut) -> None:
        """Treat timed-out transfers as failed: requests resume, and blocks are free again."""
        for item in self._in_flight.time_out(message, self._kv.issued):
            if item.load is not None:
                self._reads.on_timeout(item.load)
            self._finish(self._in_flight.finish_rank(item.transfer.id, TIMED_OUT, self._kv.issued))
        if self._lookup is not None:
            self._lookup.on_timeout(message)

    def _finish(self, item: InFlightTransfer | None) -> None:
        """Complete a transfer that all ranks have finished; None: some have not."""
        if item is None:
            return
        if item.load is None:
            self._writes.on_done(item)
        else:
            self._reads.on_done(item, item.load)
