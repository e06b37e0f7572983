"""Requests in steady decoding: one token in every step, so a step moves all of them at once.

A member's position is its base plus the cohort's tick. What is particular to a member (a block is full, its
last token is planned) happens at a tick known beforehand and stands in a calendar; everyone else costs nothing.
"""

from __future__ import annotations

from core.scheduler.request import Request, State


class Cohort:
    """Members with their rows in a stable order; leaving moves the last member into the gap."""

    __slots__ = ("_bases", "_calendar", "_tick", "members", "rows")

    def __init__(self) -> None:
        self.members: list[Request] = []
        self.rows: list[int] = []
        self._bases: list[int] = []
        self._tick = 0
        self._calendar: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, request: Request) -> None:
        """Add a request that has exactly one token to compute in the next step; it is due at once."""
        request.state = State.STEADY
        request.slot = len(self.members)
        request.base = request.planned - self._tick
        self.members.append(request)
        self.rows.append(request.row)
        self._bases.append(request.base)
        self.call_at(request, request.planned)

    def leave(self, request: Request, last_step: int) -> None:
        """Remove a member and write its position back; `last_step` is the last step issued."""
        request.planned = request.base + self._tick
        request.total = request.planned + 1
        request.last_step = last_step
        request.state = State.RUNNING
        request.due = -1
        slot, last = request.slot, self.members.pop()
        row, base = self.rows.pop(), self._bases.pop()
        if last is not request:
            self.members[slot], self.rows[slot], self._bases[slot] = last, row, base
            last.slot = slot
        if not self.members:
            self._calendar.clear()

    def position(self, request: Request) -> int:
        """Return the position a member computes in the next step."""
        return request.base + self._tick

    def call_at(self, request: Request, position: int) -> None:
        """Have `due` return the member when it is about to compute `position`."""
        request.due = position - request.base
        self._calendar.setdefault(request.due, []).append(request)

    def due(self) -> list[Request]:
        """Return the members called at this tick; each call is answered once."""
        called = self._calendar.pop(self._tick, None)
        if not called:
            return []
        return [r for r in called if r.due == self._tick and r.state is State.STEADY]

    def starts(self) -> list[int]:
        """Return the position of every member, in order."""
        tick = self._tick
        return [base + tick for base in self._bases]

    def advance(self) -> None:
        """The step was issued: every member is one token further."""
        self._tick += 1
