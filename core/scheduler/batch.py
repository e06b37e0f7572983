"""The running batch: requests that hold a row, and the rows of the worker's
batch.

Knows rows and step numbers.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from core.scheduler.columns import Columns, Ints
from core.scheduler.request import Request, State, by_rank


class Rows:
    """Leases of the rows 0..count-1.

    A freed row waits for its last step in flight, is announced as ended, then is free
    again.
    """

    __slots__ = ("_free", "_leaving", "num_rows")

    def __init__(self, count: int) -> None:
        self.num_rows = count
        self._free = list(range(count - 1, -1, -1))
        self._leaving: deque[tuple[int, int]] = deque()

    @property
    def num_leaving(self) -> int:
        """Freed rows that wait for their last step."""
        return len(self._leaving)

    @property
    def num_free(self) -> int:
        """Rows that can be taken now."""
        return len(self._free)

    def take_row(self) -> int:
        """Return a free row."""
        return self._free.pop()

    def free_row(self, row: int, issued: int) -> None:
        """Free a row; steps up to `issued` may still use it."""
        self._leaving.append((issued, row))

    def collect_ended(self, returned: int) -> list[int]:
        """Return the freed rows without steps in flight.

        They are free from now on; the next plan must list them as ended.
        """
        ended = []
        while self._leaving and self._leaving[0][0] <= returned:
            ended.append(self._leaving.popleft()[1])
        self._free.extend(reversed(ended))
        return ended


@dataclass(frozen=True, slots=True)
class Members:
    """Rows that compute one token each in a step. Plans share the lists: read-only."""

    index: Ints
    rows: list[int]
    requests: list[Request]
    request_ids: list[str]
    departures: int
    """Value of `RunningBatch.departures` at creation."""


class RunningBatch:
    """The running requests; keeps row, state and columns consistent."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self.columns = Columns(num_rows, max_len)
        self._requests = np.full(num_rows, None, np.object_)
        """Request of each row."""
        self._request_ids = np.full(num_rows, "", np.object_)
        """Request id of each row."""
        self.prompts: list[Request] = []
        """Requests with more than one token to compute, in rank order."""
        self.rows = Rows(num_rows)
        self.issued = 0
        """Step number of the last plan."""
        self.returned = 0
        """Step number of the last result."""
        self.departures = 0
        """Number of requests that have left a row."""
        self.num_unchanged = 0
        """Tokens per decode row in further steps while nothing else changes."""
        self.stops: set[int] = set()
        """Superset of the token ids that may end a running request."""
        self._members = Members(np.zeros(0, np.int64), [], [], [], -1)

    def __len__(self) -> int:
        return self.rows.num_rows - self.rows.num_free - self.rows.num_leaving

    @property
    def running(self) -> list[Request]:
        """All requests that hold a row."""
        return [request for request in self._requests.tolist() if request is not None]

    def at(self, row: int) -> Request | None:
        """Return the request of a row."""
        request: Request | None = self._requests[row]
        return request

    @property
    def is_draining(self) -> bool:
        """Whether the results in flight are the last ones of any request."""
        columns = self.columns
        reach = columns.planned + columns.num_unverified
        return bool((columns.live & (reach >= columns.last_cached_position)).any())

    def enter(self, request: Request) -> None:
        """Give a request a row."""
        row = self.rows.take_row()
        request.enter(row)
        request.state = State.RUNNING
        self._requests[row] = request
        self._request_ids[row] = request.request_id
        self.stops |= request.stops
        self.num_unchanged = 0
        insort(self.prompts, request, key=by_rank)

    def leave(self, request: Request) -> None:
        """Free the request's row; it is reused after the steps in flight have returned."""
        if request in self.prompts:
            self.prompts.remove(request)
        row = request.leave()
        self._requests[row] = None
        self.rows.free_row(row, self.issued)
        request.last_step = self.issued
        self.departures += 1
        self.num_unchanged = 0

    def members(self, index: Ints) -> Members:
        """Return the members in these rows: the same object for the same requests."""
        last = self._members
        is_same = (
            last.departures == self.departures
            and len(last.rows) == len(index)
            and not np.count_nonzero(last.index != index)
        )
        if not is_same:
            requests = self._requests[index].tolist()
            request_ids = self._request_ids[index].tolist()
            rows = index.tolist()
            self._members = Members(index, rows, requests, request_ids, self.departures)
        return self._members

    def lowest_ranked(self) -> Request:
        """Return the running request to preempt first."""
        columns = self.columns
        busy = columns.live & (columns.planned < columns.last_cached_position)
        return max((request for request in self.running if busy[request.row]), key=by_rank)

    def refresh_stops(self) -> None:
        """Remove the stop tokens of requests that have left."""
        self.stops = set().union(*(request.stops for request in self.running))


class DecodeRows:
    """The `RunningRows` of `core.contracts.scheduling`: what extensions see
    of decode rows.
    """

    def __init__(self, batch: RunningBatch) -> None:
        self._batch: Final = batch
        self.rows: Ints = np.zeros(0, np.int64)

    @property
    def num_tokens(self) -> Ints:
        """Known tokens, by row."""
        return self._batch.columns.known

    @property
    def planned(self) -> Ints:
        """Cached or planned tokens, by row."""
        return self._batch.columns.planned

    @property
    def num_unverified(self) -> Ints:
        """Draft tokens in flight, by row."""
        return self._batch.columns.num_unverified

    def request(self, row: int) -> Request:
        """Return the request of a row."""
        request = self._batch.at(row)
        assert request is not None, f"row {row} is empty"
        return request

    def tokens(self, row: int) -> npt.NDArray[np.int32]:
        """Return a view of a row's known tokens."""
        columns = self._batch.columns
        return columns.tokens[row, : columns.known[row]]
