"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.client:Acme",
            "the client thread, which counts what it was asked",
            priority=-10,
        )
    ]
