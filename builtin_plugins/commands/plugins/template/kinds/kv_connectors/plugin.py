"""Entries of acme: a KV connector, which stores and loads cached blocks."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the entry. Select it with `--kv-transfer-config '{"kv_connector": "acme"}'`."""
    return [Entry("acme", "engine_acme.connector:Acme", "a dictionary that never evicts")]
