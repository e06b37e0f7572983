"""`POST /generative_scoring`: the probability of a label token after each of several texts."""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import client_name, read_request, release_body
from builtin_plugins.routes.common.fields import Priority, ShortString
from builtin_plugins.routes.common.requests import choose_model, now
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.scoring.labels import LabelReads, check_reads, read_labels, softmax
from core.api import InvalidRequest
from core.api.serving import ServedEngine


class ScoringFields(msgspec.Struct, kw_only=True):
    """Body of `/generative_scoring`."""

    query: str | list[int]
    items: list[str | list[int]]
    """Texts or token ids, each after the query, or before it with `item_first`."""
    label_token_ids: list[int]
    """Tokens with the probabilities to read; the score is that of the first one."""
    model: str | None = None
    apply_softmax: bool = True
    """Whether probabilities are those among the labels, or over the whole vocabulary."""
    item_first: bool = False
    add_special_tokens: bool = True
    cache_salt: ShortString = ""
    priority: Priority = 0
    request_id: ShortString | None = None


class GenerativeScoring:
    """Endpoint `/generative_scoring`."""

    def __init__(self, engine: ServedEngine, *, strict: bool) -> None:
        self._engine = engine
        self._strict = strict

    async def create(self, request: Request) -> Response:
        """A score per item: the probability of the first label as its next token."""
        parsed = await read_request(request, ScoringFields, strict=self._strict)
        fields = parsed.fields
        model = await choose_model(self._engine, fields.model)
        self._check(fields)
        answer_id = f"generative-scoring-{fields.request_id or secrets.token_hex(16)}"
        options = {
            "priority": fields.priority,
            "cache_salt": fields.cache_salt,
            "client": client_name(request),
            **model.keywords,
        }
        reads = await while_connected(request, self._read(fields, answer_id, options))
        release_body(request)
        data = [
            {"index": i, "object": "score", "score": _score(logprobs, fields.apply_softmax)}
            for i, logprobs in enumerate(reads.logprobs)
        ]
        answer = {
            "id": answer_id,
            "object": "list",
            "created": now(),
            "model": model.name,
            "data": data,
            "usage": _usage(reads),
        }
        return Response(
            msgspec.json.encode(answer), media_type="application/json", headers=parsed.headers
        )

    def _check(self, fields: ScoringFields) -> None:
        for name in ("items", "label_token_ids"):
            if not getattr(fields, name):
                raise InvalidRequest(name, "is empty; give at least one.")
        check_reads(len(fields.items) * len(fields.label_token_ids))  # before items are read
        for i, token in enumerate(fields.label_token_ids):
            if not 0 <= token < self._engine.vocab_size:
                raise InvalidRequest(
                    f"label_token_ids[{i}]",
                    f"got {token}; expected a token id below {self._engine.vocab_size}.",
                )

    async def _read(
        self, fields: ScoringFields, answer_id: str, options: dict[str, Any]
    ) -> LabelReads:
        prompts = []
        for item in fields.items:
            prompts.append(await self._prompt(fields, item))
            await asyncio.sleep(0)  # short texts are read without waiting
        labels = [[[token] for token in fields.label_token_ids]] * len(prompts)
        return await read_labels(self._engine, prompts, labels, answer_id, options)

    async def _prompt(self, fields: ScoringFields, item: str | list[int]) -> list[int]:
        first, second = (item, fields.query) if fields.item_first else (fields.query, item)
        if isinstance(first, str) and isinstance(second, str):
            return await self._engine.tokenize(first + second, fields.add_special_tokens)
        ids = []
        for part, special in ((first, fields.add_special_tokens), (second, False)):
            ids += await self._engine.tokenize(part, special) if isinstance(part, str) else part
        return ids


def _score(logprobs: list[float], apply_softmax: bool) -> float:
    return softmax(logprobs)[0] if apply_softmax else math.exp(logprobs[0])


def _usage(reads: LabelReads) -> dict[str, int]:
    return {
        "prompt_tokens": reads.num_prompt_tokens,
        "completion_tokens": reads.num_generated_tokens,
        "total_tokens": reads.num_prompt_tokens + reads.num_generated_tokens,
    }
