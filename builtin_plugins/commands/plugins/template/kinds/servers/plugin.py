"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_servers() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.server:Acme",
            "HTTP without keys or limits, for trying things out",
            priority=-10,
        )
    ]
