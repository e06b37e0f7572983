"""Routes of pooling models: embeddings, `/pooling`, `/classify`, `/score` and `/rerank`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.embeddings.routes:PoolingRoutes"
    return [Entry("pooling", target, "embeddings, labels, scores, rankings", requires=("fastapi",))]
