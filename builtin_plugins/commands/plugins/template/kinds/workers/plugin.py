"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_workers() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.worker:Acme",
            "the worker of the kernel, which counts its steps",
            priority=-10,
        )
    ]
