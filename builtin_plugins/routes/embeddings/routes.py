"""Route group of pooling models: paths and body schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.routing import Route

from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.embeddings.cohere import CohereEmbeddings
from builtin_plugins.routes.embeddings.embeddings import Embeddings
from builtin_plugins.routes.embeddings.fields import (
    UNSERVED,
    WITHOUT_EFFECT,
    ClassifyFields,
    EmbeddingFields,
    EmbedFields,
    PoolFields,
    RerankFields,
    ScoreFields,
)
from builtin_plugins.routes.embeddings.scores import Scores
from builtin_plugins.routes.embeddings.service import PoolingService
from core.api import EngineConfig
from core.api.serving import ServedEngine

_BODIES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "/v1/embeddings": EmbeddingFields,
    "/v2/embed": EmbedFields,
    "/pooling": PoolFields,
    "/classify": ClassifyFields,
    "/score": ScoreFields,
    "/v1/score": ScoreFields,
    "/rerank": RerankFields,
    "/v1/rerank": RerankFields,
    "/v2/rerank": RerankFields,
}


class PoolingRoutes:
    """Routes of pooling models. A route the model does not support names the supported tasks."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._pools = PoolingService(engine, config.options)
        embeddings = Embeddings(self._pools)
        scores = Scores(self._pools)
        self._endpoints = {
            EmbeddingFields: embeddings.embeddings,
            EmbedFields: CohereEmbeddings(self._pools).embed,
            PoolFields: embeddings.pooling,
            ClassifyFields: embeddings.classify,
            ScoreFields: scores.score,
            RerankFields: scores.rerank,
        }

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route(path, self._endpoints[struct], methods=["POST"])
            for path, struct in _BODIES.items()
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        others: dict[str, Any] = {
            name: {"description": "Has no effect."} for name in WITHOUT_EFFECT
        }
        others |= {
            name: {"description": f"{known.reason}.", "enum": [*known.neutral, None]}
            for name, known in UNSERVED.items()
        }
        others |= {
            name: {"description": "Read by a plugin."} for name in self._pools.engine.fields.read
        }
        return {
            path: body_schema(struct, others, strict=self._pools.strict)
            for path, struct in _BODIES.items()
        }
