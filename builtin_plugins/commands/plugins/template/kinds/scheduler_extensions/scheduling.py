"""Lets no more than so many requests run at once; the others are parked, and woken in their order."""

from __future__ import annotations

from typing import Any


class Acme:
    """Called in the engine's thread only. Every method of `SchedulerExtension` is optional."""

    name = "acme"

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: set[str] = set()
        self._parked: dict[str, None] = {}

    def attach(self, scheduler: Any) -> None:
        """Take the scheduler, whose `wake` lets a parked request go on."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Say whether there is a place for the request; asked again after each wake and preemption."""
        if request.request_id not in self._running and len(self._running) >= self._most:
            self._parked[request.request_id] = None
            return False
        self._parked.pop(request.request_id, None)
        self._running.add(request.request_id)
        return True

    def finished(self, request: Any) -> bool:
        """Give the place to the next; False: nothing of the request's blocks is needed any more."""
        self._running.discard(request.request_id)
        self._parked.pop(request.request_id, None)
        for request_id in list(self._parked)[: max(0, self._most - len(self._running))]:
            self._scheduler.wake(request_id)
        return False
