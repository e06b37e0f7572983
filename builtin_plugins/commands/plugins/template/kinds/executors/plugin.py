"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.executor:Acme",
            "the executor uni, with the time of each step counted",
        )
    ]
