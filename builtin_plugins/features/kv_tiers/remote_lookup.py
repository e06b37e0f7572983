"""Remote lookups: a request waits until all ranks have reported their blocks.

Needed for stores that others write to and that cannot be listed. A request with a known prefix
starts without a lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.messages import (
    LookupRequest,
    LookupResult,
    TransfersTimedOut,
)
from builtin_plugins.features.kv_tiers.tier_index import TierIndex
from builtin_plugins.kv_connectors.api import BlockKey


@dataclass(slots=True, eq=False)
class OpenLookup:
    """A lookup in flight."""

    request_id: str
    num_left: int
    """Ranks that have not answered."""


class RemoteLookup:
    """The lookups of one tier."""

    def __init__(
        self, scheduler: Any, index: TierIndex, breaker: CircuitBreaker, num_ranks: int
    ) -> None:
        """`breaker`: the circuit breaker of lookups."""
        self.breaker = breaker
        self.unsent: list[LookupRequest] = []
        """Lookups for the next plan."""
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._index = index
        self._num_ranks = num_ranks
        self._block_sizes = [group.block_size for group in self._kv.layout.groups]
        self._hash_size = self._kv.layout.hash_block_size
        self._num_lookups = 0
        self._open: dict[int, OpenLookup] = {}
        self._lookup_of: dict[str, int] = {}
        """Lookup ids by waiting request."""

    def arrived(self, request: Any) -> None:
        """Look up the blocks of a request that no tier is known to hold."""
        if not self.breaker.allows(self._kv.issued):
            return
        # This also computes the request's block keys.
        num_tokens = self._kv.find_longest_hit(
            request.lease, request.tokens, request.num_tokens
        ).num_tokens
        keys = [
            key
            for key in self._store_keys(request.keys, num_tokens)
            if not self._index.directory.holds(key)
        ]
        if not keys:
            return
        self._num_lookups += 1
        self.unsent.append(LookupRequest(self._num_lookups, keys))
        self._open[self._num_lookups] = OpenLookup(request.request_id, self._num_ranks)
        self._lookup_of[request.request_id] = self._num_lookups

    def _store_keys(self, keys: list[bytes], num_tokens: int) -> list[BlockKey]:
        """Return the keys of the blocks after `num_tokens` tokens, by group and position."""
        store_keys = []
        for group, size in enumerate(self._block_sizes):
            hashes_per_block = size // self._hash_size
            for index in range(num_tokens // size, len(keys) // hashes_per_block):
                key = keys[(index + 1) * hashes_per_block - 1]
                store_keys.append(self._index.store_key(group, key))
        return store_keys

    def waits(self, request_id: str) -> bool:
        """Return whether a request waits for an answer."""
        return request_id in self._lookup_of

    def forget(self, request_id: str) -> None:
        """Stop waiting for a request's answer."""
        self._lookup_of.pop(request_id, None)

    def pop_unsent(self) -> list[LookupRequest]:
        """Return the lookups for the next plan, and clear the list."""
        unsent = self.unsent
        self.unsent = []
        return unsent

    def on_lookup_result(self, result: LookupResult) -> None:
        """Add the blocks that a rank has found. Its request starts after the last answer."""
        self.breaker.on_result(self._rank_id(result.id, result.rank), result.error, self._kv.issued)
        self._index.add_found(result.rank, result.keys)
        lookup = self._open.get(result.id)
        if lookup is None:
            return
        lookup.num_left -= 1
        if result.error or not lookup.num_left:
            self._close(result.id)

    def on_timeout(self, message: TransfersTimedOut) -> None:
        """Resume requests after their lookups have timed out on a rank."""
        ids = [id_ for id_ in message.ids if id_ in self._open]
        rank_ids = [self._rank_id(id_, message.rank) for id_ in ids]
        self.breaker.on_timeout(rank_ids, self._kv.issued)
        for id_ in ids:
            self._close(id_)

    def _close(self, id_: int) -> None:
        request_id = self._open.pop(id_).request_id
        if self._lookup_of.get(request_id) == id_:
            del self._lookup_of[request_id]
            self._scheduler.wake(request_id)

    def _rank_id(self, id_: int, rank: int) -> int:
        """Return an id that is unique across ranks."""
        return id_ * self._num_ranks + rank
