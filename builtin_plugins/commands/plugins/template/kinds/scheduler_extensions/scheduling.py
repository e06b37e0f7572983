"""A scheduler extension: limits the running requests and parks the others in order."""

from __future__ import annotations

from typing import Any


class Acme:
    """Called in the engine thread only. All methods of `SchedulerExtension` are optional."""

    name = "acme"

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._running: set[str] = set()
        self._parked: dict[str, None] = {}

    def attach(self, scheduler: Any) -> None:
        """Keep the scheduler; its `wake` resumes a parked request."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Return whether the request may run; called again after each wake and preemption."""
        if request.request_id not in self._running and len(self._running) >= self._max_running:
            self._parked[request.request_id] = None
            return False
        self._parked.pop(request.request_id, None)
        self._running.add(request.request_id)
        return True

    def finished(self, request: Any) -> bool:
        """Wake parked requests; return False, so that the request's blocks are freed."""
        self._running.discard(request.request_id)
        self._parked.pop(request.request_id, None)
        for request_id in list(self._parked)[: max(0, self._max_running - len(self._running))]:
            self._scheduler.wake(request_id)
        return False
