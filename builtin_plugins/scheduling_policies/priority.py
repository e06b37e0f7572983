"""Requests with a lower `priority` value run first; equal ones in order of arrival."""

from __future__ import annotations

from core.api import Entry, QueuedRequest, hookimpl


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    return [
        Entry(
            "priority",
            "builtin_plugins.scheduling_policies.priority:Priority",
            "lower priority value first",
        )
    ]


class Priority:
    """Whoever has the highest value is preempted first."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the request's priority value."""
        return (request.priority,)
