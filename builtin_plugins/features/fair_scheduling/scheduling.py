"""Scheduler half: while several clients want rows, each gets up to an even share of them.

Requests are limited when they start, not while they run: a client that was alone may keep more than
its share until its requests end. A client without requests holds its share for a number of steps,
so a client that sends one request after another finds a row again.

With more clients than shared rows they take turns: a client with more tokens than the average waits
until the others have caught up, unless no request would run. These are the virtual counters of
"Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from builtin_plugins.features.fair_scheduling.admission import NAME
from core.api.execution import StepPlan

HOLD_STEPS: Final = 256
"""Steps that an idle client holds its share: those of a typical answer."""
CROWD_WEIGHT: Final = 2
"""Weight of a token of a client with several open requests, which delay the other clients."""
REMEMBERED_REQUESTS: Final = 1000
"""Number of requests after which a client without any of them is forgotten."""


@dataclass(slots=True)
class _Client:
    """The open requests of one client."""

    num_open: int = 0
    admitted: set[str] = field(default_factory=set)
    """Requests that may start or have started."""
    parked: deque[str] = field(default_factory=deque)


class FairScheduler:
    """Limits the rows per client. Requests without a client are neither limited nor counted."""

    name = NAME

    def __init__(self, num_rows: int, shared_rows: int, hold_steps: int = HOLD_STEPS) -> None:
        self._num_rows = num_rows
        self._shared_rows = shared_rows
        self._hold_steps = hold_steps
        self._scheduler: Any = None
        self._clients: dict[bytes, _Client] = {}
        """Clients with open requests."""
        self._idle: dict[bytes, int] = {}
        """Last step that an idle client holds its share, earliest first."""
        self._step = 0
        self._last_seen: dict[bytes, int] = {}
        """Number of each client's newest request, oldest first."""
        self._used_tokens: dict[bytes, int] = {}
        """Tokens of ended requests per active or idle client.

        A new client starts with the minimum of the others.
        """
        self._num_requests = 0

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler, to wake requests."""
        self._scheduler = scheduler

    def arrived(self, request: Any) -> None:
        """Count the request for its client."""
        name = request.features.get(NAME)
        if name is None:
            return
        self._clients.setdefault(name, _Client()).num_open += 1
        self._idle.pop(name, None)
        fewest = min(self._used_tokens.values(), default=0)
        self._used_tokens.setdefault(name, fewest)
        self._remember(name)

    def may_start(self, request: Any) -> bool:
        """Return whether the request's client has less than its share."""
        name = request.features.get(NAME)
        if name is None:
            return True
        client = self._clients[name]
        if request.request_id in client.admitted:
            return True  # woken, waiting for blocks, or preempted
        if len(client.admitted) < self._share() and self._has_turn(name):
            client.admitted.add(request.request_id)
            return True
        client.parked.append(request.request_id)
        return False

    def finished(self, request: Any) -> bool:
        """Wake requests that the ended one made room for."""
        name = request.features.get(NAME)
        if name is None:
            return False
        client = self._clients[name]
        if request.request_id in client.admitted:  # else it never started
            weight = CROWD_WEIGHT if client.num_open > 1 else 1
            self._used_tokens[name] += request.num_tokens * weight
        client.num_open -= 1
        client.admitted.discard(request.request_id)
        if request.request_id in client.parked:
            client.parked.remove(request.request_id)
        if not client.num_open:
            del self._clients[name]
            if self._hold_steps:
                self._idle[name] = self._step + self._hold_steps
            else:
                del self._used_tokens[name]
        self._wake()
        return False

    def planned(self, plan: StepPlan) -> bytes | None:
        """Count steps and free the shares that idle clients have held long enough."""
        self._step = plan.step
        expired = False
        while self._idle and next(iter(self._idle.values())) <= plan.step:
            name = next(iter(self._idle))
            del self._idle[name]
            del self._used_tokens[name]
            expired = True
        if expired:
            self._wake()
        return None

    def _wake(self) -> None:
        """Wake parked requests of clients below their share, fewest tokens first."""
        share = self._share()
        clients = self._clients.items()
        waiting = [name for name, c in clients if c.parked and len(c.admitted) < share]
        for name in sorted(waiting, key=lambda name: self._used_tokens[name]):
            if not self._has_turn(name):
                return  # nor have clients with more tokens
            client = self._clients[name]
            while client.parked and len(client.admitted) < share:
                request_id = client.parked.popleft()
                client.admitted.add(request_id)
                self._scheduler.wake(request_id)

    def _share(self) -> int:
        """Return the rows that each client may have now.

        A single client may have all rows, except a few for clients seen recently.
        """
        num_clients = len(self._clients) + len(self._idle)
        if num_clients > 1:
            return -(-self._shared_rows // num_clients)
        if len(self._last_seen) < 2:
            return self._num_rows
        return max(1, self._num_rows - self._num_rows // 8)

    def _has_turn(self, name: bytes) -> bool:
        """Return whether a client has had up to the average of tokens.

        Applies only with more clients than shared rows, and while any request runs.
        """
        used = self._used_tokens
        if len(used) <= self._shared_rows:
            return True
        if not any(client.admitted for client in self._clients.values()):
            return True
        return used[name] * len(used) <= sum(used.values())

    def _remember(self, name: bytes) -> None:
        self._num_requests += 1
        self._last_seen.pop(name, None)
        self._last_seen[name] = self._num_requests
        oldest = next(iter(self._last_seen))
        if self._last_seen[oldest] <= self._num_requests - REMEMBERED_REQUESTS:
            del self._last_seen[oldest]
