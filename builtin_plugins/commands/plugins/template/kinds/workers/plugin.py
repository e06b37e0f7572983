"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_workers() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.worker:Acme",
            "the builtin worker, with a count of steps",
            priority=-10,
        )
    ]
