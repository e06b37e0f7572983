"""First come, first served: equal keys, so requests run in arrival order."""

from __future__ import annotations

from core.api import Entry, hookimpl
from core.api.features import QueuedRequest


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    target = "builtin_plugins.scheduling_policies.fcfs:FirstCome"
    return [Entry("fcfs", target, "order of arrival", priority=10)]


class FirstCome:
    """The default policy."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the same key for all requests."""
        return ()
