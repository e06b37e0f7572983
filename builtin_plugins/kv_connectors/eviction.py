"""Which block goes first where there is room for no other: the least recently used, or what ARC
says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, Literal, Protocol

from core.api import BlockKey

Name = Literal["lru", "arc"]


class Order(Protocol):
    """The blocks that are held, in the order in which they would go."""

    def __contains__(self, key: BlockKey) -> bool:
        """Say whether a block is held."""

    def __iter__(self) -> Iterator[BlockKey]:
        """Yield those that are held, the first to go first."""

    def add(self, key: BlockKey) -> None:
        """A block that was not held is."""

    def touch(self, key: BlockKey) -> None:
        """A block that is held was used."""

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """A block that was held is no more; `evicted`: it had to make room."""


class LeastRecentlyUsed:
    """Whatever was not used for the longest time goes first."""

    def __init__(self) -> None:
        self._keys: OrderedDict[BlockKey, None] = OrderedDict()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(self._keys)

    def add(self, key: BlockKey) -> None:
        """It is the newest."""
        self._keys[key] = None

    def touch(self, key: BlockKey) -> None:
        """It is the newest again."""
        self._keys.move_to_end(key)

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """Forget it."""
        del self._keys[key]


class AdaptiveReplacement:
    """ARC (Megiddo and Modha, 2003): blocks used once and blocks used again are two lists, and what
    is asked for shortly
    after it has gone says which of them should be longer. So a long run of prompts that nobody asks
    for again does not take the place of what is asked for often.
    """

    def __init__(self) -> None:
        self._once: OrderedDict[BlockKey, None] = OrderedDict()
        self._often: OrderedDict[BlockKey, None] = OrderedDict()
        self._gone_once: OrderedDict[BlockKey, None] = OrderedDict()
        self._gone_often: OrderedDict[BlockKey, None] = OrderedDict()
        self._share = 0.0
        """How many blocks used once may stay."""

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._once or key in self._often

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def __iter__(self) -> Iterator[BlockKey]:
        surplus = max(0, len(self._once) - int(self._share))
        return chain(islice(self._once, surplus), self._often, islice(self._once, surplus, None))

    def add(self, key: BlockKey) -> None:
        """It is new, or comes back."""
        if key in self._gone_once:
            self._share = min(
                len(self) + 1.0,
                self._share + max(1.0, len(self._gone_often) / len(self._gone_once)),
            )
            del self._gone_once[key]
            self._often[key] = None
        elif key in self._gone_often:
            self._share = max(
                0.0, self._share - max(1.0, len(self._gone_once) / len(self._gone_often))
            )
            del self._gone_often[key]
            self._often[key] = None
        else:
            self._once[key] = None

    def touch(self, key: BlockKey) -> None:
        """It is used again."""
        self._once.pop(key, None)
        self._often[key] = None
        self._often.move_to_end(key)

    def remove(self, key: BlockKey, *, evicted: bool) -> None:
        """Remember that it was there, if it went for others."""
        held, gone = (
            (self._once, self._gone_once) if key in self._once else (self._often, self._gone_often)
        )
        del held[key]
        if evicted:
            gone[key] = None
            while len(gone) > len(self) + 1:  # as much is remembered as is held
                gone.popitem(last=False)


ORDERS: Final[dict[Name, type[LeastRecentlyUsed | AdaptiveReplacement]]] = {
    "lru": LeastRecentlyUsed,
    "arc": AdaptiveReplacement,
}
