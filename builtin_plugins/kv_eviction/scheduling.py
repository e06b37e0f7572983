"""Scheduler half: replaces the pools' free queues with the policy's.

The default policy replaces them with the first request that sets `kv_retention`. Until then steps
cost nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from builtin_plugins.kv_eviction.admission import NAME
from builtin_plugins.kv_eviction.contract import EvictionOrder, KVEviction, Retention

_decode = msgspec.msgpack.Decoder(Retention).decode


class GroupFacts(NamedTuple):
    """A KV group's pool and block sizes."""

    pool: Any
    group: int
    block_size: int
    hashes_per_block: int
    pool_index: int


class Eviction:
    """Installs the policy's queues, and passes on the retention of finished requests."""

    name = NAME

    def __init__(self, policy: KVEviction, *, at_once: bool) -> None:
        """`at_once`: install the queues at start, not with the first `kv_retention`."""
        self._policy = policy
        self._at_once = at_once
        self._queues: list[EvictionOrder] = []
        """Queues by pool; empty until they are installed."""
        self._now_s = 0.0

    def attach(self, scheduler: Any) -> None:
        """Remember the cache."""
        self._kv = scheduler.kv
        layout = self._kv.layout
        self._groups = [
            GroupFacts(
                self._kv.pools[group.pool],
                index,
                group.block_size,
                group.block_size // layout.hash_block_size,
                group.pool,
            )
            for index, group in enumerate(layout.groups)
        ]
        if self._at_once:
            self._install()

    def _install(self) -> None:
        """Replace the pools' queues. Blocks cached so far have the default priority."""
        for pool in self._kv.pools:
            queue = self._policy.order(pool.num_blocks)
            for block in pool.free_queue:
                queue[block] = None
            pool.free_queue = queue
            self._queues.append(queue)
        for pool, group, _, _, pool_index in self._groups:
            cached = [*pool.cached_blocks(group).values()]
            self._queues[pool_index].touch(cached, None, self._now_s)
        self._kv.add_listener(lambda lease, tokens, start: None, self._on_removed)

    def _on_removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        self._queues[self._groups[group].pool_index].invalidate(block)

    def arrived(self, request: Any) -> None:
        """Advance the time to the request's arrival. The first retention installs the queues."""
        self._now_s = max(self._now_s, request.source.arrival_s)
        if not self._queues and NAME in request.features:
            self._install()

    def finished(self, request: Any) -> bool:
        """Apply the request's retention to its cached blocks."""
        if self._queues:
            payload = request.features.get(NAME)
            retention = None if payload is None else _decode(payload)
            for pool, group, size, hashes_per_block, pool_index in self._groups:
                cached = pool.cached_blocks(group)
                end = request.num_published // size * hashes_per_block
                keys = request.keys[hashes_per_block - 1 : end : hashes_per_block]
                num_retained = len(keys)
                if retention is not None and retention.first_tokens is not None:
                    num_retained = retention.first_tokens // size
                for part, part_retention in (
                    (keys[:num_retained], retention),
                    (keys[num_retained:], None),
                ):
                    blocks = [cached[key] for key in part if key in cached]
                    self._queues[pool_index].touch(blocks, part_retention, self._now_s)
        return False
