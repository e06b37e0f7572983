"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.client:Acme",
            "the thread client, with a count of requests",
            priority=-10,
        )
    ]
