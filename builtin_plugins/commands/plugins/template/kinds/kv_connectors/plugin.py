"""A KV connector: a place that cached blocks go to and come back from."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the entry; `--kv-transfer-config '{"kv_connector": "acme"}'` chooses it."""
    return [Entry("acme", "engine_acme.connector:Acme", "a dictionary that never lets go")]
