"""Entry point of the distribution: the KV connector `nixl`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    summary = "blocks of other engines, read by NIXL"
    return [Entry("nixl", "engine_nixl.connector:Nixl", summary, requires=("nixl>=1.0",))]
