"""Requests with a lower `priority` value run first; ties run in arrival order."""

from __future__ import annotations

from core.api import Entry, hookimpl
from core.api.features import QueuedRequest


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    target = "builtin_plugins.scheduling_policies.priority:Priority"
    return [Entry("priority", target, "lower priority value first")]


class Priority:
    """Preempts the request with the highest value first."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the request's priority value."""
        return (request.priority,)
