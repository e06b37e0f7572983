"""What the encoder caches of all ranks hold: the scheduler half decides, the ranks follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MAX_SEEN: Final = 8192
"""Items of the past that are not encoded ahead: their prompts may be prefix hits."""


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    encoded: int = 0
    """Items that were encoded."""
    hits: int = 0
    """Items that a step found in the encoder cache."""
    evicted: int = 0
    """Items that were removed from the encoder cache."""
    processed: int = 0
    """Items of requests: those that the input processor looked up in its store."""
    known: int = 0
    """Those of them that it found there."""

    def gauges(self) -> dict[str, float]:
        """Return the counts by metric name."""
        return {
            "mm_encoder_runs_total": self.encoded,
            "mm_encoder_cache_hits_total": self.hits,
            "mm_encoder_cache_evictions_total": self.evicted,
            "mm_cache_queries_total": self.processed,
            "mm_cache_hits_total": self.known,
        }


class EncoderCache:
    """Items by content hash, with their numbers of embeddings."""

    def __init__(self, max_tokens: int, counters: Counters) -> None:
        self._max_tokens: Final = max_tokens
        self._counters: Final = counters
        self._items: OrderedDict[bytes, int] = OrderedDict()
        """Cached items, the least recently used first."""
        self._reserved: dict[bytes, int] = {}
        """Items that stay until a step needs them, cached or still to be encoded."""
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        """Items that were encoded, the newest last."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._items

    @property
    def num_tokens(self) -> int:
        """Embeddings of all cached items."""
        return sum(self._items.values())

    def was_encoded(self, key: bytes) -> bool:
        """Return whether an item was encoded before, cached or not."""
        return key in self._seen

    def fits(self, size: int) -> bool:
        """Return whether an item fits without an eviction."""
        return self.num_tokens + size <= self._max_tokens

    def reserve(self, sizes: Mapping[bytes, int]) -> bool:
        """Keep items until `need` or `release`; False if all that is reserved does not fit."""
        reserved = {**self._reserved, **sizes}
        if sum(reserved.values()) > self._max_tokens:
            return False
        self._reserved = reserved
        return True

    def release(self, key: bytes) -> None:
        """Let an item be evicted again."""
        self._reserved.pop(key, None)

    def need(self, sizes: Mapping[bytes, int]) -> list[bytes]:
        """Return which of the items of a step it must encode."""
        missing = []
        for key, size in sizes.items():
            self.release(key)
            if key in self._items:
                self._counters.hits += 1
                self._items.move_to_end(key)
            else:
                self.add(key, size)
                missing.append(key)
        return missing

    def add(self, key: bytes, size: int) -> None:
        """Add an item that a step encodes."""
        self._counters.encoded += 1
        self._items[key] = size
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def evict(self, needed: Collection[bytes]) -> list[bytes]:
        """Remove the least recently used items until the others fit; those of a step stay.

        Reserved items are removed last: they are encoded again for the chunk that needs them.
        """
        dropped: list[bytes] = []
        if self.num_tokens <= self._max_tokens:
            return dropped
        for key in sorted(self._items, key=self._reserved.__contains__):
            if self.num_tokens <= self._max_tokens:
                break
            if key not in needed:
                del self._items[key]
                dropped.append(key)
        self._counters.evicted += len(dropped)
        return dropped
