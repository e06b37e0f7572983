"""Requests that hold a row: the steady ones in a cohort, all others in order of rank. Knows rows and step numbers."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from core.scheduler.cohort import Cohort
from core.scheduler.request import Request, State
from core.scheduler.rows import Rows

_rank = attrgetter("rank")


class Batch:
    """What runs. Every method keeps row, state and list of a request in agreement."""

    __slots__ = ("_steady_allowed", "cohort", "draining", "issued", "returned", "rows", "running")

    def __init__(self, num_rows: int, *, steady_allowed: bool, watched: bool) -> None:
        self.cohort = Cohort(watched=watched)
        self.running: list[Request] = []
        """Best first: prompts under way, and whoever did not get its block or row of tokens."""
        self.draining: set[Request] = set()
        self.rows = Rows(num_rows)
        self.issued = 0
        """Number of the last plan."""
        self.returned = 0
        """Number of the last result."""
        self._steady_allowed = steady_allowed

    def __len__(self) -> int:
        return len(self.cohort) + len(self.running) + len(self.draining)

    def enter(self, request: Request) -> None:
        """Give a request a row."""
        request.row = self.rows.take()
        request.state = State.RUNNING
        insort(self.running, request, key=_rank)

    def leave(self, request: Request) -> None:
        """Take the row back, from whichever state; nothing may use it before the steps in flight are in."""
        self._take_out(request)
        self.rows.give(request.row, self.issued)
        request.row = -1
        request.last_step = self.issued

    def stall(self, request: Request) -> None:
        """A steady request cannot take part in this step."""
        self.cohort.leave(request, self.issued)
        insort(self.running, request, key=_rank)

    def drain(self, request: Request) -> None:
        """All it may compute is planned: it keeps its row until its last result is in."""
        self._take_out(request)
        request.state = State.DRAINING
        self.draining.add(request)

    def settle(self, request: Request) -> None:
        """Its part of a plan has left: move it to where its next step is planned."""
        if request.total >= request.limit:
            self.drain(request)
        elif self._steady_allowed and request.planned + 1 == request.total < request.limit - 1:
            self.running.remove(request)
            self.cohort.join(request)
            self.cohort.call_at(request, min(request.lease.capacity, request.limit - 2))

    def planned(self, request: Request) -> int:
        """Return the leading tokens of a request whose keys and values are cached or planned."""
        return self.cohort.position(request) if request.state is State.STEADY else request.planned

    def lowest(self) -> Request:
        """Return the running request that would be preempted first."""
        last = self.running[-1:]
        return max((*last, *self.cohort.members.requests), key=_rank)

    def _take_out(self, request: Request) -> None:
        if request.state is State.STEADY:
            self.cohort.leave(request, self.issued)
        elif request.state is State.DRAINING:
            self.draining.remove(request)
        else:
            self.running.remove(request)
