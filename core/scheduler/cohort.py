"""Requests in steady decoding: one token in every step, so a step moves all of them at once.

A member's position is its base plus the cohort's tick. What is particular to a member (a block is full, its
last token comes up) happens at a tick known beforehand and stands in a calendar; everyone else costs nothing. Tokens
that come in are kept in one column per step and handed to the members when somebody needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.scheduler.request import Request, State


@dataclass(frozen=True, slots=True)
class Members:
    """The cohort at one time; nobody changes the lists, which plans and news share."""

    requests: list[Request]
    rows: list[int]
    request_ids: list[str]
    departures: int
    """Members that had left by then."""


class Cohort:
    """Members in a stable order; leaving moves the last member into the gap."""

    __slots__ = (
        "_calendar",
        "_columns",
        "_members",
        "_names",
        "_requests",
        "_rows",
        "_tick",
        "_watched",
        "departures",
        "stops",
    )

    def __init__(self, *, watched: bool) -> None:
        self._watched = watched
        """Extensions may look at any request at any time, so tokens are handed out at once."""
        self.departures = 0
        self.stops: set[int] = set()
        """Tokens that may end a member, and perhaps some that no longer can."""
        self._requests: list[Request] = []
        self._rows: list[int] = []
        self._names: list[str] = []
        self._members: Members | None = None
        """None after a change."""
        self._columns: list[list[int]] = []
        """Tokens that `_members` were not given yet."""
        self._tick = 0
        self._calendar: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def members(self) -> Members:
        """Who is in it now."""
        if self._members is None:
            self._members = Members(self._requests.copy(), self._rows.copy(), self._names.copy(), self.departures)
        return self._members

    def join(self, request: Request) -> None:
        """Add a request that has exactly one token to compute in the next step; `call_at` says when it is due."""
        self._change()
        request.state = State.STEADY
        request.slot = len(self._requests)
        request.base = request.planned - self._tick
        self._requests.append(request)
        self._rows.append(request.row)
        self._names.append(request.request_id)
        self.stops |= request.stops

    def leave(self, request: Request, last_step: int) -> None:
        """Remove a member and write its position back; `last_step` is the last step issued."""
        self._change()
        self.departures += 1
        request.planned = request.base + self._tick
        request.total = request.planned + 1
        request.last_step = last_step
        request.state = State.RUNNING
        request.due = -1
        slot, last, row, name = request.slot, self._requests.pop(), self._rows.pop(), self._names.pop()
        if last is not request:
            self._requests[slot], self._rows[slot], self._names[slot] = last, row, name
            last.slot = slot
        if not self._requests:
            self._calendar.clear()
            self.stops.clear()

    def _change(self) -> None:
        self.hand_out()
        self._members = None

    def position(self, request: Request) -> int:
        """Return the position a member computes in the next step."""
        return request.base + self._tick

    def call_at(self, request: Request, position: int) -> None:
        """Have `due` return the member when it is about to compute `position`."""
        request.due = position - request.base
        self._calendar.setdefault(request.due, []).append(request)

    def due(self) -> list[Request]:
        """Return the members called at this tick, their tokens handed out; each call is answered once."""
        called = self._calendar.pop(self._tick, None)
        if not called:
            return []
        self.hand_out()
        return [r for r in called if r.due == self._tick and r.state is State.STEADY]

    def advance(self) -> None:
        """The step was issued: every member is one token further."""
        self._tick += 1

    def take(self, members: Members, tokens: list[int]) -> None:
        """Take in one token for each of `members`, of whom nobody has left since."""
        if members is self._members and not self._watched:
            self._columns.append(tokens)
            return
        for request, token in zip(members.requests, tokens, strict=True):
            request.tokens.append(token)

    def hand_out(self) -> None:
        """Give the members the tokens that came in."""
        if self._columns:
            for request, tokens in zip(self._requests, zip(*self._columns, strict=True), strict=True):
                request.tokens.extend(tokens)
            self._columns.clear()

    def narrow_stops(self) -> None:
        """Forget the stop tokens of those who left."""
        self.stops = set().union(*(request.stops for request in self._requests))
