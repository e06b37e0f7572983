"""Blocks that more than one request has had go last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from core.api import Retention


class Acme:
    """Makes the order of each pool."""

    def order(self, num_blocks: int) -> Order:
        """Return one that knows no block."""
        return Order()


class Order:
    """Two queues of blocks that nobody holds, each with the least recently held one first."""

    def __init__(self) -> None:
        """Begin with none."""
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def __iter__(self) -> Iterator[int]:
        return iter([*self._once, *self._often])

    def __setitem__(self, block: int, nothing: None, /) -> None:
        queue = self._often if self._uses.get(block, 0) > 1 else self._once
        queue[block] = None

    def __delitem__(self, block: int, /) -> None:
        queue = self._often if block in self._often else self._once
        del queue[block]

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Let go of what one request had, then of what several had."""
        queue = self._once or self._often
        return queue.popitem(last=last)

    def used(self, blocks: Sequence[int], said: Retention | None, now_s: float) -> None:
        """Count; whatever requests say."""
        for block in blocks:
            self._uses[block] = self._uses.get(block, 0) + 1

    def forgotten(self, block: int) -> None:
        """Something else will be there."""
        self._uses.pop(block, None)
