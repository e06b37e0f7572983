"""An eviction policy that evicts blocks used by several requests last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from builtin_plugins.kv_eviction.api import Retention


class Acme:
    """Creates the eviction order of each pool."""

    def order(self, num_blocks: int) -> Order:
        """Return an empty order."""
        return Order()


class Order:
    """Two LRU queues of free blocks: used once, used often."""

    def __init__(self) -> None:
        """Start empty."""
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def __iter__(self) -> Iterator[int]:
        return iter([*self._once, *self._often])

    def __setitem__(self, block: int, value: None, /) -> None:
        queue = self._often if self._uses.get(block, 0) > 1 else self._once
        queue[block] = None

    def __delitem__(self, block: int, /) -> None:
        queue = self._often if block in self._often else self._once
        del queue[block]

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Evict a block used once, or else one used often."""
        queue = self._once or self._often
        return queue.popitem(last=last)

    def touch(self, blocks: Sequence[int], retention: Retention | None, now_s: float) -> None:
        """Count a use of the blocks; ignores retention."""
        for block in blocks:
            self._uses[block] = self._uses.get(block, 0) + 1

    def invalidate(self, block: int) -> None:
        """Reset the use count of a block with new content."""
        self._uses.pop(block, None)
