"""`/v1/embeddings`, `/v2/embed`, `/pooling`, `/classify`, `/score` and `/rerank`: what models that
are pooled have to say.
"""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.pooling.routes:PoolingRoutes"
    return [Entry("pooling", target, "embeddings, labels, scores, rankings", requires=("fastapi",))]
