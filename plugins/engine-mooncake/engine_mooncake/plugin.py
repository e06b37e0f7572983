"""Entry point of the distribution: the KV connector `mooncake`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    summary = "blocks of other engines, read by Mooncake's transfer engine"
    return [Entry("mooncake", "engine_mooncake.connector:Mooncake", summary)]
