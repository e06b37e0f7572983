"""`POST /score` and `/rerank`: similarity by a cross-encoder, or cosine of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.requests import now
from builtin_plugins.routes.embeddings.encoding import cosine
from builtin_plugins.routes.embeddings.fields import RerankFields, ScoreFields
from builtin_plugins.routes.embeddings.service import (
    Job,
    PooledPrompt,
    PoolingService,
    Side,
    as_response,
    check_count,
    read_side,
    read_sides,
)
from core.api import InvalidRequest, PoolingParams


class Scores:
    """Endpoints `/score` and `/rerank`."""

    def __init__(self, pools: PoolingService) -> None:
        self._pools = pools

    async def score(self, request: Request) -> Response:
        """A score for each pair of texts: one with one, one with many, or each with its own."""
        return await self._pools.answer(request, ScoreFields, "score", self._score)

    async def rerank(self, request: Request) -> Response:
        """Documents in the order of their relevance to a query."""
        return await self._pools.answer(request, RerankFields, "rerank", self._rerank)

    async def _score(self, job: Job[ScoreFields]) -> Response:
        first, second = job.fields.sides
        one, other = (read_sides(name, getattr(job.fields, name)) for name in (first, second))
        if len(one) not in (1, len(other)):
            raise InvalidRequest(
                first,
                f"has {len(one)} texts for the {len(other)} of {second}; give one, or as many.",
            )
        scores, pooled_prompts = await self._scores(job, one, other, job.fields.params())
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
        head = {"id": job.id, "object": "list", "created": now(), "model": job.model}
        return as_response(head | {"data": data, "usage": self._pools.usage(pooled_prompts)})

    async def _rerank(self, job: Job[RerankFields]) -> Response:
        fields = job.fields
        query = read_side("query", fields.query)
        if (fields.documents is None) == (fields.texts is None):
            raise InvalidRequest("documents", "is missing; give documents, or texts.")
        given: Sequence[Any] = fields.documents or fields.texts or []
        name = fields.typed["prompt"]
        check_count(name, given)
        documents = read_sides(name, list(given))
        params = fields.params()
        if fields.texts is not None:
            limit = -1 if fields.truncate else params.truncate_prompt_tokens
            params = params.clone(
                use_activation=not fields.raw_scores, truncate_prompt_tokens=limit
            )
        scores, pooled_prompts = await self._scores(job, [query], documents, params)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: fields.top_n or None]
        if fields.texts is not None:
            texts = [{"text": documents[i]} if fields.return_text else {} for i in order]
            return as_response(
                [
                    {"index": i, "score": scores[i], **text}
                    for i, text in zip(order, texts, strict=True)
                ]
            )
        results = [
            {"index": i, "relevance_score": scores[i], **self._document_field(fields, documents, i)}
            for i in order
        ]
        usage = self._pools.usage(pooled_prompts)
        return as_response({"id": job.id, "model": job.model, "usage": usage, "results": results})

    def _document_field(
        self, fields: RerankFields, documents: Sequence[Side], index: int
    ) -> dict[str, Any]:
        if not fields.return_documents:
            return {}
        document = documents[index]
        if isinstance(document, str):
            return {"document": {"text": document}}
        given: Any = (fields.documents or ())[index]
        return {"document": {"multi_modal": given["content"]}}

    async def _scores(
        self, job: Job[Any], first: list[Side], second: list[Side], params: PoolingParams
    ) -> tuple[list[float], list[PooledPrompt]]:
        """Return the score of each pair; a single first side pairs with every second one."""
        if self._pools.supported_task("score", "embed") == "score":
            self._pools.check_images([*first, *second])
            pairs = list(
                zip(first * len(second) if len(first) == 1 else first, second, strict=True)
            )
            pooled_prompts = await self._pools.pool(job, pairs, params.clone(task="score"))
            return [each.pooled.numbers()[0] for each in pooled_prompts], pooled_prompts
        prompts = self._pools.alone([*first, *second])
        pooled_prompts = await self._pools.pool(job, prompts, params.clone(task="embed"))
        ones = pooled_prompts[: len(first)]
        others = pooled_prompts[len(first) :]
        if len(ones) == 1:
            ones = ones * len(others)
        return [
            cosine(one.pooled, other.pooled) for one, other in zip(ones, others, strict=True)
        ], pooled_prompts
