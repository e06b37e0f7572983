"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.loader:Acme",
            "safetensors files read whole, for file systems slow to map",
        )
    ]
