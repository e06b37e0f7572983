"""Disaggregated prefill: blocks that other engines offer, and blocks offered to them.

Knows neither bytes nor addresses; the connector's `RemoteKVDirectory` does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.messages import NAME
from builtin_plugins.kv_connectors.api import BlockKey, RemoteKVDirectory

MAX_ENGINES: Final = 1024
"""Number of remote engines with a remembered circuit breaker."""
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class RemotePrefill:
    """The remote side of a tier with a connector between engines."""

    def __init__(
        self,
        directory: RemoteKVDirectory,
        connector: str,
        scheduler: Any,
        store_key: Callable[[int, bytes], BlockKey],
    ) -> None:
        """`store_key`: returns the store's key of a cached block, by group and cache key."""
        self._directory = directory
        self._connector = connector
        self._scheduler = scheduler
        self._store_key = store_key
        self._block_sizes = [group.block_size for group in scheduler.kv.layout.groups]
        self._hash_size = scheduler.kv.layout.hash_block_size
        self._breakers: dict[bytes, CircuitBreaker] = {}
        self._offered: dict[str, list[BlockKey]] = {}
        """Unwritten blocks of finished requests that were offered to another engine."""

    @property
    def breakers(self) -> Sequence[CircuitBreaker]:
        """Circuit breakers of the remote engines."""
        return [*self._breakers.values()]

    @property
    def holds_blocks(self) -> bool:
        """True if blocks of finished requests are still pinned."""
        return bool(self._offered)

    def source(self, key: BlockKey) -> bytes:
        """Return the remote engine that has a block; empty: none."""
        return self._directory.source(key)

    def breaker(self, source: bytes) -> CircuitBreaker:
        """Return the circuit breaker of a remote engine."""
        if source not in self._breakers:
            self._breakers[source] = CircuitBreaker(self._connector, "fetching")
            if len(self._breakers) > MAX_ENGINES:
                del self._breakers[next(iter(self._breakers))]
        return self._breakers[source]

    def arrived(self, request: Any) -> None:
        """Register the blocks that another engine offers for a request."""
        params = request.features.get(NAME)
        if params is None or not (params := _decode(params)).get("do_remote_prefill"):
            return
        # This also computes the request's block keys.
        self._scheduler.kv.find_longest_hit(
            request.lease, request.tokens, request.num_tokens, tiers=False
        )
        blocks = params.get("remote_block_ids")
        num_hashes = len(request.keys)
        if blocks is not None:
            num_hashes = len(blocks) * self._block_sizes[0] // self._hash_size
        expected = [self._store_key(*key) for key in self._keys_of(request.keys[:num_hashes])]
        self._directory.expect(request.request_id, expected, params)

    def finished(self, request: Any, unwritten: Container[BlockKey]) -> bool:
        """Offer a finished request's blocks, if its client set `do_remote_decode`.

        Returns whether some are still `unwritten`: they stay pinned until `release_written`.
        """
        self._directory.forget(request.request_id)
        params = request.features.get(NAME)
        if params is None or not _decode(params).get("do_remote_decode"):
            return False
        blocks = request.tables[0][: request.num_published // self._block_sizes[0]]
        request.feature_outputs[NAME] = _encode(self._directory.offer(blocks))
        pinned = [key for key in self._keys_of(request.keys) if key in unwritten]
        if pinned:
            self._offered[request.request_id] = pinned
        return bool(pinned)

    def release_written(self, unwritten: Container[BlockKey], *, can_write: bool) -> None:
        """Unpin blocks of finished requests if their writes have begun, or never will."""
        for request_id, pinned in [*self._offered.items()]:
            if not can_write or not any(key in unwritten for key in pinned):
                del self._offered[request_id]
                self._scheduler.release(request_id)

    def _keys_of(self, hashes: Sequence[bytes]) -> Iterator[BlockKey]:
        """Yield the cache keys of all blocks that a prefix chain covers."""
        for group, size in enumerate(self._block_sizes):
            hashes_per_block = size // self._hash_size
            block_hashes = hashes[hashes_per_block - 1 :: hashes_per_block]
            yield from (BlockKey(group, key) for key in block_hashes)
