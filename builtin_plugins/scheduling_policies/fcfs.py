"""First come, first served: every request ranks the same, so the order of arrival decides."""

from __future__ import annotations

from core.api import Entry, QueuedRequest, hookimpl


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    return [
        Entry(
            "fcfs",
            "builtin_plugins.scheduling_policies.fcfs:FirstCome",
            "order of arrival",
            priority=10,
        )
    ]


class FirstCome:
    """The default."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the same key for all."""
        return ()
