"""Entries of acme: an eviction policy for cached blocks."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_eviction() -> list[Entry]:
    """Return the entry. Select it with `--kv-eviction-policy acme`."""
    return [Entry("acme", "engine_acme.eviction:Acme", "evicts blocks of several requests last")]
