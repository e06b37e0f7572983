"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    """Return the entry."""
    return [Entry("acme", "engine_acme.policy:Acme", "the shortest prompt first")]
