"""Requests that hold a row, and which of them a step moves together. Knows rows and step numbers."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from core.scheduler.columns import Columns, Ints
from core.scheduler.request import Request, State
from core.scheduler.rows import Rows

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class Members:
    """Rows that compute one token each in a step; nobody changes the lists, which plans and news
    share.
    """

    index: Ints
    rows: list[int]
    requests: list[Request]
    request_ids: list[str]
    departures: int
    """Requests that had left the batch by then."""


class Batch:
    """What runs. Every method keeps row, state and columns of a request in agreement."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self.columns = Columns(num_rows, max_len)
        self._who = np.full(num_rows, None, np.object_)
        """Who has each row ..."""
        self._names = np.full(num_rows, "", np.object_)
        """... and what that is called."""
        self.prompts: list[Request] = []
        """Best first: those with more than one token to compute."""
        self.rows = Rows(num_rows)
        self.issued = 0
        """Number of the last plan."""
        self.returned = 0
        """Number of the last result."""
        self.departures = 0
        """Requests that have left a row."""
        self.quiet = 0
        """Tokens that each member of the last step may compute in steps to come while nothing else
        happens.
        """
        self.stops: set[int] = set()
        """Tokens that may end somebody who runs, and perhaps some that no longer can."""
        self._members = Members(np.zeros(0, np.int64), [], [], [], -1)

    def __len__(self) -> int:
        return self.rows.num_rows - self.rows.num_free - self.rows.num_leaving

    @property
    def running(self) -> list[Request]:
        """Everybody who has a row."""
        return [request for request in self._who.tolist() if request is not None]

    def at(self, row: int) -> Request | None:
        """Return who has a row."""
        request: Request | None = self._who[row]
        return request

    @property
    def is_draining(self) -> bool:
        """Say whether anybody's results in flight are its last."""
        columns = self.columns
        return bool((columns.live & (columns.planned + columns.slack >= columns.last)).any())

    def enter(self, request: Request) -> None:
        """Give a request a row."""
        row = self.rows.take()
        request.enter(row)
        request.state = State.RUNNING
        self._who[row], self._names[row] = request, request.request_id
        self.stops |= request.stops
        self.quiet = 0
        insort(self.prompts, request, key=_rank)

    def leave(self, request: Request) -> None:
        """Take the row back; nothing may use it before the steps in flight are in."""
        if request in self.prompts:
            self.prompts.remove(request)
        row = request.leave()
        self._who[row] = None
        self.rows.give(row, self.issued)
        request.last_step = self.issued
        self.departures += 1
        self.quiet = 0

    def members(self, index: Ints) -> Members:
        """Return who is in these rows; the same object while it is the same requests."""
        last = self._members
        if (
            last.departures != self.departures
            or len(last.rows) != len(index)
            or np.count_nonzero(last.index != index)
        ):
            requests = self._who[index].tolist()
            names = self._names[index].tolist()
            self._members = Members(index, index.tolist(), requests, names, self.departures)
        return self._members

    def lowest(self) -> Request:
        """Return the running request that would be preempted first."""
        columns = self.columns
        busy = columns.live & (columns.planned < columns.last)
        return max((request for request in self.running if busy[request.row]), key=_rank)

    def narrow_stops(self) -> None:
        """Forget the stop tokens of those who left."""
        self.stops = set().union(*(request.stops for request in self.running))
