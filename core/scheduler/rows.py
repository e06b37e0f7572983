"""Rows of the worker's batch, as leases: one request each, reused only when no step in flight names
them.
"""

from __future__ import annotations

from collections import deque


class Rows:
    """Numbers 0..count-1.

    A row given back waits for its last step, is announced as ended, then is free again.
    """

    __slots__ = ("_free", "_leaving", "num_rows")

    def __init__(self, count: int) -> None:
        self.num_rows = count
        self._free = list(range(count - 1, -1, -1))
        self._leaving: deque[tuple[int, int]] = deque()

    @property
    def num_leaving(self) -> int:
        """Rows that wait for their last step."""
        return len(self._leaving)

    @property
    def num_free(self) -> int:
        """Rows that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """Return a free row."""
        return self._free.pop()

    def give(self, row: int, issued: int) -> None:
        """Give a row back; steps up to `issued` may still name it."""
        self._leaving.append((issued, row))

    def collect(self, returned: int) -> list[int]:
        """Free the rows whose steps have all returned; the next plan must announce them as ended."""
        ended = []
        while self._leaving and self._leaving[0][0] <= returned:
            ended.append(self._leaving.popleft()[1])
        self._free.extend(reversed(ended))
        return ended

    def check(self, held: list[int], ended: list[int]) -> None:
        """Assert that every row is held once, leaving or free."""
        everyone = sorted([*held, *self._free, *(row for _, row in self._leaving)])
        assert everyone == list(range(self.num_rows)), "a row is lost or held twice"
        assert not set(ended) & set(held), "a row is announced as ended and held"
