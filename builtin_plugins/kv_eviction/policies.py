"""The shipped eviction policies: `lru`, and `retention` with priorities of requests."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from builtin_plugins.kv_eviction.contract import Retention
from core.api import EngineConfig

DEFAULT_PRIORITY: Final = 50
"""Priority of blocks without a `kv_retention`."""


class LRUPolicy:
    """Policy `lru`: evicts the least recently released block. Ignores `kv_retention`."""

    def order(self, num_blocks: int) -> LRUQueue:
        """Return an empty queue."""
        return LRUQueue()


class LRUQueue(OrderedDict[int, None]):
    """The kernel's own queue."""

    def touch(self, blocks: Sequence[int], retention: Retention | None, now_s: float) -> None:
        """Do nothing."""

    def invalidate(self, block: int) -> None:
        """Do nothing: the block keeps its position."""


class RetentionPolicy:
    """Policy `retention`: evicts by priority, then least recently released first.

    Higher priorities than the default last for a time, and for a share of each pool. Beyond the
    share they displace earlier ones, so other requests find what is left as without priorities.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._share: float = config.options["kv_retention_share"]

    def order(self, num_blocks: int) -> RetentionQueue:
        """Return an empty queue."""
        return RetentionQueue(int(num_blocks * self._share))


class Priority(NamedTuple):
    """Priority of a block, and when it expires."""

    level: int
    until_s: float


class RetentionQueue:
    """Free blocks in one LRU queue for each priority."""

    def __init__(self, max_retained: int) -> None:
        """`max_retained`: free blocks that may have more than the default priority."""
        self._max_retained: Final = max_retained
        self._num_retained = 0
        self._queues: dict[int, OrderedDict[int, None]] = {DEFAULT_PRIORITY: OrderedDict()}
        self._levels = [DEFAULT_PRIORITY]
        """Priorities with a queue, lowest first."""
        self._level_of: dict[int, int] = {}
        """Queue of each free block."""
        self._priorities: dict[int, Priority] = {}
        """Known priorities of cached blocks, free or in use."""
        self._expiries: list[tuple[float, int]] = []
        """Heap of (expiry, block)."""
        self._now_s = -inf

    # --- a pool's queue

    def __len__(self) -> int:
        return len(self._level_of)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._queues[level] for level in self._levels)

    def __setitem__(self, block: int, nothing: None, /) -> None:
        priority = self._priorities.get(block)
        level = DEFAULT_PRIORITY if priority is None else priority.level
        if level > DEFAULT_PRIORITY:
            if self._num_retained >= self._max_retained and not self._displace(level):
                level = DEFAULT_PRIORITY
            else:
                self._num_retained += 1
        self._append(block, level)

    def __delitem__(self, block: int, /) -> None:
        level = self._level_of.pop(block)
        del self._queues[level][block]
        self._num_retained -= level > DEFAULT_PRIORITY

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Pop the least recently released block of the lowest priority."""
        level = next(level for level in self._levels if self._queues[level])
        block, _ = self._queues[level].popitem(last=False)
        del self._level_of[block]
        self._num_retained -= level > DEFAULT_PRIORITY
        return block, None

    def _append(self, block: int, level: int) -> None:
        if level not in self._queues:
            self._queues[level] = OrderedDict()
            insort(self._levels, level)
        self._queues[level][block] = None
        self._level_of[block] = level

    def _displace(self, level: int) -> bool:
        """Reset the oldest retained block of up to this priority. Return whether there is one."""
        lowest = next(
            (each for each in self._levels if each > DEFAULT_PRIORITY and self._queues[each]),
            level + 1,
        )
        if lowest > level:
            return False
        block, _ = self._queues[lowest].popitem(last=False)
        self._num_retained -= 1
        self._append(block, DEFAULT_PRIORITY)
        return True

    # --- priorities

    def touch(self, blocks: Sequence[int], retention: Retention | None, now_s: float) -> None:
        """Raise blocks to a request's priority. Of equal ones, the later expiry counts."""
        self._now_s = now_s
        self._expire()
        new = Priority(DEFAULT_PRIORITY, inf)
        if retention is not None:
            expires = retention.priority > DEFAULT_PRIORITY
            new = Priority(retention.priority, now_s + retention.duration_s if expires else inf)
        for block in blocks:
            if new > self._priorities.get(block, Priority(-1, 0.0)):
                self._set_priority(block, new)

    def _set_priority(self, block: int, priority: Priority) -> None:
        self._priorities[block] = priority
        if priority.until_s < inf:
            heappush(self._expiries, (priority.until_s, block))
        if block in self._level_of:
            del self[block]
            self[block] = None

    def _expire(self) -> None:
        """Reset expired priorities. Their blocks are the next to evict of the default priority."""
        while self._expiries and self._expiries[0][0] <= self._now_s:
            until_s, block = heappop(self._expiries)
            current = self._priorities.get(block, Priority(DEFAULT_PRIORITY, inf))
            if current.until_s != until_s:
                continue
            self._priorities[block] = Priority(DEFAULT_PRIORITY, inf)
            if self._level_of.get(block, DEFAULT_PRIORITY) > DEFAULT_PRIORITY:
                self._requeue_first(block)

    def invalidate(self, block: int) -> None:
        """Forget a block's priority, and make it the next to evict of the default priority."""
        self._priorities.pop(block, None)
        if block in self._level_of:
            self._requeue_first(block)

    def _requeue_first(self, block: int) -> None:
        del self[block]
        self[block] = None
        self._queues[DEFAULT_PRIORITY].move_to_end(block, last=False)
