"""An order in which cached blocks go."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_eviction() -> list[Entry]:
    """Return the entry; `--kv-eviction-policy acme` chooses it."""
    return [Entry("acme", "engine_acme.eviction:Acme", "blocks that several requests had go last")]
