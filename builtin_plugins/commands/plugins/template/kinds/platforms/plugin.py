"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_platforms() -> list[Entry]:
    """Return the entry."""
    return [Entry("acme", "engine_acme.platform:Acme", "a device of Acme's", priority=-10)]
