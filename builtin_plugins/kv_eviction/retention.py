"""Blocks go by what requests have said that they are worth, those of equal worth in the order in
which they were last held.

What is worth more than usual is kept for a time, and never more than a share of a pool: whoever
asks for more of it shortens what was kept so far, and others find what they have left behind as if
nobody had asked.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from core.api import EngineConfig, Retention

USUAL: Final = 50
"""Worth of blocks that nobody has said anything of."""


class Retaining:
    """Entry `retention`."""

    def __init__(self, config: EngineConfig) -> None:
        self._share: float = config.options["kv_retention_share"]

    def order(self, num_blocks: int) -> RetainingOrder:
        """Return an empty order."""
        return RetainingOrder(int(num_blocks * self._share))


class Worth(NamedTuple):
    """What a block is worth, and until when."""

    level: int
    until_s: float


class RetainingOrder:
    """A queue for each worth, of blocks that nobody holds."""

    def __init__(self, most_kept: int) -> None:
        """`most_kept`: blocks that may be worth more than usual while nobody holds them."""
        self._most_kept: Final = most_kept
        self._num_kept = 0
        self._queues: dict[int, OrderedDict[int, None]] = {USUAL: OrderedDict()}
        self._levels = [USUAL]
        """Those that there are queues of, the lowest first."""
        self._level_of: dict[int, int] = {}
        """Which queue each of the blocks is in."""
        self._worth: dict[int, Worth] = {}
        """Of blocks that can be found, held or not, as far as anything is known."""
        self._ends: list[tuple[float, int]] = []
        """A heap: when a worth ends, and whose."""
        self._now_s = -inf

    # --- a pool's queue

    def __len__(self) -> int:
        return len(self._level_of)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._queues[level] for level in self._levels)

    def __setitem__(self, block: int, nothing: None, /) -> None:
        worth = self._worth.get(block)
        level = USUAL if worth is None else worth.level
        if level > USUAL:
            if self._num_kept >= self._most_kept and not self._gives_way(level):
                level = USUAL
            else:
                self._num_kept += 1
        self._enter(block, level)

    def __delitem__(self, block: int, /) -> None:
        level = self._level_of.pop(block)
        del self._queues[level][block]
        self._num_kept -= level > USUAL

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Let the block go that is worth least; of several, that which was held the longest time
        ago.
        """
        level = next(level for level in self._levels if self._queues[level])
        block, _ = self._queues[level].popitem(last=False)
        del self._level_of[block]
        self._num_kept -= level > USUAL
        return block, None

    def _enter(self, block: int, level: int) -> None:
        if level not in self._queues:
            self._queues[level] = OrderedDict()
            insort(self._levels, level)
        self._queues[level][block] = None
        self._level_of[block] = level

    def _gives_way(self, level: int) -> bool:
        """Make a block usual that is worth no more than a level; say whether there is one."""
        lowest = next(
            (each for each in self._levels if each > USUAL and self._queues[each]), level + 1
        )
        if lowest > level:
            return False
        block, _ = self._queues[lowest].popitem(last=False)
        self._num_kept -= 1
        self._enter(block, USUAL)
        return True

    # --- what blocks are worth

    def used(self, blocks: Sequence[int], said: Retention | None, now_s: float) -> None:
        """Of what several requests say of a block the highest counts, and of equal ones that which
        ends last.
        """
        self._now_s = now_s
        self._end_some()
        new = Worth(USUAL, inf) if said is None else Worth(said.priority, inf)
        if said is not None and said.priority > USUAL:
            new = Worth(said.priority, now_s + said.duration_s)
        for block in blocks:
            if new > self._worth.get(block, Worth(-1, 0.0)):
                self._is_worth(block, new)

    def _is_worth(self, block: int, worth: Worth) -> None:
        self._worth[block] = worth
        if worth.until_s < inf:
            heappush(self._ends, (worth.until_s, block))
        if block in self._level_of:
            del self[block]
            self[block] = None

    def _end_some(self) -> None:
        """What was kept for long enough is usual, and goes before what else is."""
        while self._ends and self._ends[0][0] <= self._now_s:
            until_s, block = heappop(self._ends)
            if self._worth.get(block, Worth(USUAL, inf)).until_s != until_s:
                continue
            self._worth[block] = Worth(USUAL, inf)
            if self._level_of.get(block, USUAL) > USUAL:
                del self[block]
                self[block] = None
                self._queues[USUAL].move_to_end(block, last=False)

    def forgotten(self, block: int) -> None:
        """Nothing is known of what comes there next, and it goes before all that can be found."""
        self._worth.pop(block, None)
        if block in self._level_of:
            del self[block]
            self[block] = None
            self._queues[USUAL].move_to_end(block, last=False)
