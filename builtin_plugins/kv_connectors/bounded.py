"""A directory of blocks that take at most so many bytes. Knows no place and no medium."""

from __future__ import annotations

from collections.abc import Container, Sequence

from builtin_plugins.kv_connectors.eviction import ORDERS, Name
from core.api import BlockKey


class BoundedDirectory:
    """Holds what stores were told to keep, up to a number of bytes; who goes first is the order's
    to say.
    """

    def __init__(self, most_bytes: int, group_bytes: Sequence[int], order: Name) -> None:
        """`group_bytes`: of a block of each KV group."""
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._group_bytes = group_bytes
        self._order = ORDERS[order]()
        self._coming: set[BlockKey] = set()
        """Room is made for them."""

    def holds(self, key: BlockKey) -> bool:
        """Say whether it was stored."""
        return key in self._order

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room by letting others go."""
        size = self._group_bytes[key.group]
        if key in self._order or key in self._coming:
            return None
        going = []
        missing = self.num_bytes + size - self.most_bytes
        if missing > 0:
            for other in self._order:
                if other not in pinned:
                    going.append(other)
                    missing -= self._group_bytes[other.group]
                    if missing <= 0:
                        break
            else:
                return None
        for other in going:
            self._order.remove(other, evicted=True)
            self.num_bytes -= self._group_bytes[other.group]
        self.num_bytes += size
        self._coming.add(key)
        return going

    def stored(self, key: BlockKey) -> None:
        """It is there."""
        self._coming.remove(key)
        self._order.add(key)

    def used(self, key: BlockKey) -> None:
        """Whoever has it keeps it longer."""
        if key in self._order:
            self._order.touch(key)

    def lost(self, key: BlockKey) -> None:
        """Its room is free."""
        if key in self._order:
            self._order.remove(key, evicted=False)
        elif key in self._coming:
            self._coming.remove(key)
        else:
            return
        self.num_bytes -= self._group_bytes[key.group]
