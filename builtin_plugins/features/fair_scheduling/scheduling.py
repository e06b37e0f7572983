"""The scheduler half: while several clients want rows, nobody gets more than an even share of them.

Looks at requests when they arrive, when they may start and when they end, at no running one. What
is running goes on: a client that was alone may have more than its share until its requests end. And
a client whose last request has ended keeps its share for a while: who asks one thing after the
other is gone between two of them, and would find its place taken.

Where there are more clients than rows to share, a row each is more than a share. Then they take
turns: who has had more tokens than the others on average waits until they caught up, unless nothing
else would run (the virtual counters of "Fairness in Serving Large Language Models", Sheng et al.,
OSDI 2024).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from builtin_plugins.features.fair_scheduling.admission import NAME
from core.api import StepPlan

KEPT_STEPS: Final = 256
"""Steps for which a client that has left keeps its share: those of a usual answer."""
CROWD_WEIGHT: Final = 2
"""By how much a token counts of a client with several requests open: a crowd costs the others more
than its tokens.
"""
REMEMBERED: Final = 1000
"""Requests after which a client that has sent none of them is forgotten."""


@dataclass(slots=True)
class _Client:
    """One client's requests: all that have not ended, of these the ones that may start or have, and
    those that were parked.
    """

    num_open: int = 0
    admitted: set[str] = field(default_factory=set)
    parked: deque[str] = field(default_factory=deque)


class Shares:
    """Requests that say nobody's name are not held back, and take nobody's share."""

    name = NAME

    def __init__(self, num_rows: int, shared_rows: int, kept_steps: int = KEPT_STEPS) -> None:
        self._num_rows = num_rows
        self._shared_rows = shared_rows
        self._kept_steps = kept_steps
        self._scheduler: Any = None
        self._clients: dict[bytes, _Client] = {}
        """Those that want rows now."""
        self._left: dict[bytes, int] = {}
        """Those that wanted some until a while ago: the last step for which their share is kept,
        the earliest first.
        """
        self._step = 0
        self._seen: dict[bytes, int] = {}
        """By client, the number of its newest request; the oldest of these stands first."""
        self._had: dict[bytes, int] = {}
        """Tokens of the requests that have ended, of those that are here or left a while ago; who
        comes anew has had as
        many as the one with the fewest."""
        self._num_seen = 0

    def attach(self, scheduler: Any) -> None:
        """Remember whom to wake."""
        self._scheduler = scheduler

    def arrived(self, request: Any) -> None:
        """Count who wants rows."""
        name = request.features.get(NAME)
        if name is not None:
            self._clients.setdefault(name, _Client()).num_open += 1
            self._left.pop(name, None)
            self._had.setdefault(name, min(self._had.values(), default=0))
            self._see(name)

    def may_start(self, request: Any) -> bool:
        """Let it start while its client has less than its share."""
        name = request.features.get(NAME)
        if name is None:
            return True
        client = self._clients[name]
        if (
            request.request_id in client.admitted
        ):  # woken, or asked again for want of room or after it was preempted
            return True
        if len(client.admitted) < self._share() and self._has_turn(name):
            client.admitted.add(request.request_id)
            return True
        client.parked.append(request.request_id)
        return False

    def finished(self, request: Any) -> bool:
        """Let others start in its place, as far as the shares go."""
        name = request.features.get(NAME)
        if name is None:
            return False
        client = self._clients[name]
        if request.request_id in client.admitted:  # else it left before it had anything
            self._had[name] += request.num_tokens * (CROWD_WEIGHT if client.num_open > 1 else 1)
        client.num_open -= 1
        client.admitted.discard(request.request_id)
        if request.request_id in client.parked:
            client.parked.remove(request.request_id)
        if not client.num_open:
            del self._clients[name]
            if self._kept_steps:
                self._left[name] = self._step + self._kept_steps
            else:
                del self._had[name]
        self._wake()
        return False

    def planned(self, plan: StepPlan) -> bytes | None:
        """Count steps; share out what nobody came back for."""
        self._step = plan.step
        lapsed = False
        while self._left and next(iter(self._left.values())) <= plan.step:
            name = next(iter(self._left))
            del self._left[name], self._had[name]
            lapsed = True
        if lapsed:
            self._wake()
        return None

    def _wake(self) -> None:
        share = self._share()
        waiting = [
            name
            for name, each in self._clients.items()
            if each.parked and len(each.admitted) < share
        ]
        for name in sorted(waiting, key=lambda name: self._had[name]):
            if not self._has_turn(name):
                return  # nor has who had more
            each = self._clients[name]
            while each.parked and len(each.admitted) < share:
                request_id = each.parked.popleft()
                each.admitted.add(request_id)
                self._scheduler.wake(request_id)

    def _share(self) -> int:
        """Return how many rows each client may have now.

        One that is alone may have all but a few, which are kept for those that were there a while
        ago.
        """
        num_clients = len(self._clients) + len(self._left)
        if num_clients > 1:
            return -(-self._shared_rows // num_clients)
        return (
            self._num_rows if len(self._seen) < 2 else max(1, self._num_rows - self._num_rows // 8)
        )

    def _has_turn(self, name: bytes) -> bool:
        """Say whether a client has had no more than its due, where there are too many for a row
        each.
        """
        if len(self._had) <= self._shared_rows or not any(
            each.admitted for each in self._clients.values()
        ):
            return True
        return self._had[name] * len(self._had) <= sum(self._had.values())

    def _see(self, name: bytes) -> None:
        self._num_seen += 1
        self._seen.pop(name, None)
        self._seen[name] = self._num_seen
        oldest = next(iter(self._seen))
        if self._seen[oldest] <= self._num_seen - REMEMBERED:
            del self._seen[oldest]
