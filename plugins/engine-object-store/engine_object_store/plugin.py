"""Entry point of the distribution: the KV connector `object_store`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    target = "engine_object_store.connector:ObjectStore"
    summary = "objects in a bucket: S3, Google Cloud Storage, Azure, a folder"
    return [Entry("object_store", target, summary, requires=("obstore>=0.5",))]
