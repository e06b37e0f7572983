"""Reads: a request waits until all its blocks are loaded. After a failure it recomputes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.errors import TIMED_OUT, WEIGHTS_CHANGED
from builtin_plugins.features.kv_tiers.in_flight import InFlightTable, InFlightTransfer, RequestLoad
from builtin_plugins.features.kv_tiers.messages import BlockTransfer
from builtin_plugins.features.kv_tiers.remote_prefill import RemotePrefill
from builtin_plugins.features.kv_tiers.tier_index import TierIndex
from builtin_plugins.kv_connectors.api import BlockKey
from core.api import RequestFailed


class BlockReads:
    """The pending reads of one tier, and the requests that wait for them."""

    def __init__(
        self,
        scheduler: Any,
        index: TierIndex,
        in_flight: InFlightTable,
        breaker: CircuitBreaker,
        remote: RemotePrefill | None,
        *,
        recomputes: bool,
    ) -> None:
        """`breaker`: the circuit breaker of local reads.

        `recomputes`: recompute blocks that fail to load; otherwise their request fails.
        """
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._index = index
        self._in_flight = in_flight
        self._breaker = breaker
        self._remote = remote
        self._block_sizes = [group.block_size for group in self._kv.layout.groups]
        self._hash_size = self._kv.layout.hash_block_size
        self._recomputes = recomputes
        self.num_loaded = 0
        """Blocks loaded since the start."""
        self.num_failures = 0
        """Blocks that could not be loaded, or did not match their checksum."""
        self.hit_tokens = 0
        """Prompt tokens that requests got from the tier."""
        self.missed_tokens = 0
        """Prompt tokens of ended requests that neither the device nor a tier had."""
        self._queue: deque[tuple[RequestLoad, InFlightTransfer]] = deque()
        """Reads that have not begun."""
        self._loads: dict[str, RequestLoad] = {}
        """Loads by waiting request."""
        self._errors: dict[str, str] = {}
        """Errors of requests that must fail."""

    @property
    def has_queued(self) -> bool:
        """True if any read has not begun."""
        return bool(self._queue)

    def holds(self, group: int, key: bytes) -> bool:
        """Return whether a cached block can be read now."""
        store_key = self._index.store_key(group, key)
        return bool(self._index.directory.holds(store_key)) and self._breaker_of(
            self._source(store_key)
        ).allows(self._kv.issued)

    def _source(self, key: BlockKey) -> bytes:
        """Return the remote engine that has a block; empty: the local store."""
        return b"" if self._remote is None else self._remote.source(key)

    def _breaker_of(self, source: bytes) -> CircuitBreaker:
        """Return the circuit breaker of a source."""
        return self._breaker if self._remote is None or not source else self._remote.breaker(source)

    # --- requests

    def may_start(self, request_id: str) -> bool:
        """Return whether a request waits for no block.

        Raises `RequestFailed` after a failed load under the policy `fail`.
        """
        error = self._errors.pop(request_id, None)
        if error is not None:
            raise RequestFailed(error)
        return request_id not in self._loads

    def park(self, request: Any, loads: Sequence[Any]) -> None:
        """Queue reads of these `BlockLoad`s; the request waits for them."""
        extent = self._extent(request, {(each.group, each.key) for each in loads})
        lease_name = self._in_flight.lease_name(self._in_flight.new_id())
        load = RequestLoad(lease_name, request.request_id, *extent, len(loads))
        tables: list[list[int]] = [[] for _ in self._block_sizes]
        for each in loads:
            tables[each.group].append(each.block)
            key = self._index.store_key(each.group, each.key)
            source = self._source(key)
            self._index.pinned[key] += 1
            breaker = self._breaker_of(source)
            item = self._in_flight.make(key, each.block, load, breaker, source)
            self._queue.append((load, item))
        self._scheduler.pin(load.lease_name, tables)
        self._loads[request.request_id] = load

    def _extent(self, request: Any, keys: set[tuple[int, bytes]]) -> tuple[int, int]:
        """Return the first position of the loaded blocks, and the position after the last."""
        ends = [
            (group, (index + 1) * self._hash_size)
            for group in range(len(self._block_sizes))
            for index, key in enumerate(request.keys)
            if (group, key) in keys
        ]
        return (
            min(end - self._block_sizes[group] for group, end in ends),
            max(end for _, end in ends),
        )

    def forget(self, request_id: str) -> None:
        """Stop waiting for a request's blocks. They stay pinned until their reads have ended."""
        self._errors.pop(request_id, None)
        load = self._loads.pop(request_id, None)
        if load is not None:
            load.request_id = None

    # --- transfers

    def begin(self, max_inflight_bytes: int) -> list[BlockTransfer]:
        """Begin reads until `max_inflight_bytes` are in flight."""
        begun: list[BlockTransfer] = []
        while self._queue and self._in_flight.num_bytes < max_inflight_bytes:
            _, item = self._queue.popleft()
            begun.append(self._in_flight.begin(item))
        return begun

    def on_done(self, item: InFlightTransfer, load: RequestLoad) -> None:
        """Count a read that all ranks have finished."""
        error = item.failure
        self.num_loaded += not error
        self.num_failures += bool(error)
        self._finish(load, item.transfer.key, error)
        if error and item.error != WEIGHTS_CHANGED:
            self._index.discard(item.transfer.key)

    def on_timeout(self, load: RequestLoad) -> None:
        """Resume a request after one of its reads has timed out."""
        load.error = load.error or TIMED_OUT
        self._resume(load)

    def cancel_blocked(self) -> None:
        """Cancel queued reads from sources with an open circuit breaker."""
        step = self._kv.issued + 1
        self._cancel(lambda item: not item.breaker.allows(step), "its connector is paused")

    def cancel_all(self) -> None:
        """Cancel all queued reads after the weights changed."""
        self._cancel(lambda item: True, WEIGHTS_CHANGED)

    def _cancel(self, matches: Callable[[InFlightTransfer], bool], error: str) -> None:
        queue = self._queue
        self._queue = deque()
        for load, item in queue:
            if matches(item):
                self._finish(load, item.transfer.key, error)
            else:
                self._queue.append((load, item))

    def _finish(self, load: RequestLoad, key: BlockKey, error: str) -> None:
        pinned = self._index.pinned
        pinned[key] -= 1
        if not pinned[key]:
            del pinned[key]
        load.error = load.error or error
        load.num_left -= 1
        if not load.num_left:
            self._resume(load)
            self._scheduler.release(load.lease_name)

    def _resume(self, load: RequestLoad) -> None:
        """Let the waiting request start, with its blocks or without them."""
        if load.request_id is None:
            return
        request_id = load.request_id
        load.request_id = None
        del self._loads[request_id]
        if not load.error:
            self.hit_tokens += load.end - load.position
            self._scheduler.loaded(request_id)
            return
        if not self._recomputes:
            self._errors[request_id] = (
                f"its cached prefix could not be loaded ({load.error}), and kv_load_failure_policy "
                "is fail; send it again."
            )
        self._scheduler.recompute(request_id, load.position)
        self._scheduler.wake(request_id)
