"""Whatever nobody has held for the longest time goes first. Knows nobody's wishes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.api import Retention


class LeastRecentlyUsed:
    """Entry `lru`."""

    def order(self, num_blocks: int) -> LruOrder:
        """Return an empty queue."""
        return LruOrder()


class LruOrder(OrderedDict[int, None]):
    """The queue that the kernel has by itself."""

    def used(self, blocks: Sequence[int], said: Retention | None, now_s: float) -> None:
        """Requests say it in vain."""

    def forgotten(self, block: int) -> None:
        """It keeps its place."""
