"""What the distribution brings: the KV connector `lmcache`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    target = "engine_lmcache.connector:LMCache"
    summary = "LMCache's memory, and the folders, servers and buckets behind it"
    return [Entry("lmcache", target, summary, requires=("lmcache>=0.5.6,<0.6",))]
