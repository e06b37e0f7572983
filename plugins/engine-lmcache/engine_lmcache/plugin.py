"""Entry point of the distribution: the KV connector `lmcache`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    target = "engine_lmcache.connector:LMCache"
    summary = "LMCache's host memory, with folders, servers and buckets as second level"
    return [Entry("lmcache", target, summary, requires=("lmcache>=0.5.6,<0.6",))]
