"""Requests that wait, best first. Knows ranks only."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from core.scheduler.request import Request

_rank = attrgetter("rank")


class WaitingQueue:
    """Sorted by rank, which is unique; a request's rank never changes while it is in the queue."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[Request] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def head(self) -> Request | None:
        """The request to start next."""
        return self._items[0] if self._items else None

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        if not self._items or self._items[-1].rank < request.rank:
            self._items.append(request)
        else:
            insort(self._items, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._items[bisect_left(self._items, request.rank, key=_rank)]
