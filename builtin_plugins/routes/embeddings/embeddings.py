"""`POST /v1/embeddings`, `/pooling` and `/classify` of texts, token ids or a conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.media_parts import (
    are_whole_prompts,
    load_media,
    media_prompt,
    read_media,
)
from builtin_plugins.routes.common.requests import now
from builtin_plugins.routes.embeddings import encoding
from builtin_plugins.routes.embeddings.fields import (
    ClassifyFields,
    EmbeddingFields,
    InputFields,
    PoolFields,
)
from builtin_plugins.routes.embeddings.service import (
    Job,
    PooledPrompt,
    PoolingService,
    as_response,
    read_inputs,
)
from core.api import InvalidRequest


class Embeddings:
    """Endpoints `/v1/embeddings`, `/pooling` and `/classify`."""

    def __init__(self, pools: PoolingService) -> None:
        self._pools = pools

    async def embeddings(self, request: Request) -> Response:
        """An embedding of each input."""
        return await self._pools.answer(request, EmbeddingFields, "embd", self._embed)

    async def pooling(self, request: Request) -> Response:
        """The output of `task`, or of the model's own task, for each input."""
        return await self._pools.answer(request, PoolFields, "pool", self._pool)

    async def classify(self, request: Request) -> Response:
        """Probabilities of the labels for each input."""
        return await self._pools.answer(request, ClassifyFields, "classify", self._classify)

    async def _embed(self, job: Job[EmbeddingFields]) -> Response:
        params = job.fields.params(
            task=self._pools.supported_task("embed"), dimensions=job.fields.dimensions
        )
        pooled_prompts = await self._pools.pool(job, await self._prompts(job), params)
        return await self._numbers(job, pooled_prompts, "embedding", "embedding")

    async def _pool(self, job: Job[PoolFields]) -> Response:
        if self._pools.engine.pooling is None:
            self._pools.supported_task("embed")
        params = job.fields.params(task=job.fields.task, dimensions=job.fields.dimensions)
        pooled_prompts = await self._pools.pool(job, await self._prompts(job), params)
        return await self._numbers(job, pooled_prompts, "pooling", "data")

    async def _classify(self, job: Job[ClassifyFields]) -> Response:
        params = job.fields.params(task=self._pools.supported_task("classify"))
        pooled_prompts = await self._pools.pool(job, await self._prompts(job), params)
        data = [self._labelled(i, each) for i, each in enumerate(pooled_prompts)]
        return as_response(self._head(job, pooled_prompts) | {"data": data})

    def _labelled(self, index: int, pooled_prompts: PooledPrompt) -> dict[str, Any]:
        probs = pooled_prompts.pooled.numbers()
        best = max(range(len(probs)), key=probs.__getitem__)
        return {
            "index": index,
            "label": self._label(best),
            "probs": probs,
            "num_classes": len(probs),
        }

    def _label(self, label: int) -> str:
        """Return the name of a label in config.json, or transformers' default name."""
        names = getattr(self._pools.engine.source.hf_config, "id2label", None)
        found = names.get(str(label)) if isinstance(names, Mapping) else None
        return found if isinstance(found, str) else f"LABEL_{label}"

    async def _numbers(
        self, job: Job[Any], pooled_prompts: Sequence[PooledPrompt], kind: str, key: str
    ) -> Response:
        """Return the numbers in the requested encoding, under `key` of objects of this kind."""
        fields = job.fields
        head = self._head(job, pooled_prompts)
        if fields.encoding_format in ("bytes", "bytes_only"):
            return _as_bytes(head, pooled_prompts, fields)
        data = []
        for i, each in enumerate(pooled_prompts):
            if fields.encoding_format == "float":
                encoded: Any = encoding.as_json(each.pooled)
            else:
                encoded = encoding.as_base64(each.pooled, fields.embed_dtype, fields.endianness)
            data.append({"object": kind, "index": i, key: encoded})
            await asyncio.sleep(0)  # encoding a million numbers would delay other requests
        return as_response(head | {"data": data})

    def _head(self, job: Job[Any], pooled_prompts: Sequence[PooledPrompt]) -> dict[str, Any]:
        usage = self._pools.usage(pooled_prompts)
        return {
            "id": job.id,
            "object": "list",
            "created": now(),
            "model": job.model,
            "usage": usage,
        }

    async def _prompts(self, job: Job[Any]) -> list[Any]:
        """Return the prompts: texts, or token ids if the request sets the tokenization."""
        fields: InputFields = job.fields
        if (fields.input is None) == (fields.messages is None):
            raise InvalidRequest("input", "give either input or messages.")
        if fields.messages is not None:
            return [await self._rendered(job)]
        found: list[Any] = list(read_inputs([] if fields.input is None else fields.input))
        if fields.add_special_tokens is False:
            for i, text in enumerate(found):
                if isinstance(text, str):
                    found[i] = await self._pools.engine.tokenize(text, False, client=job.client)
                    await asyncio.sleep(0)
        return found

    async def _rendered(self, job: Job[Any]) -> Any:
        """Return the prompt of a conversation: token ids, or with images a dict."""
        fields: InputFields = job.fields
        if not fields.messages:
            raise InvalidRequest("messages", "is empty; at least one message is needed.")
        if fields.chat_template is not None and not self._pools.trusts_request_templates:
            raise InvalidRequest(
                "chat_template",
                "is not taken from requests; --trust-request-chat-template allows it.",
            )
        engine = self._pools.engine
        media = read_media(engine, fields.messages)
        if are_whole_prompts(engine, media):
            data = await load_media(engine, media.sources, client=job.client)
            return media_prompt([], _texts_of(media.messages), data)
        text, ids = await engine.render_chat(
            media.messages,
            client=job.client,
            chat_template=fields.chat_template,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            template_kwargs=fields.chat_template_kwargs,
        )
        if fields.add_special_tokens:
            ids = await engine.tokenize(text, True, client=job.client)
        if not media.sources:
            return list(ids)
        data = await load_media(engine, media.sources, client=job.client)
        return media_prompt(list(ids), text, data)


def _texts_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of messages with media."""
    contents = [message.get("content") for message in messages]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "\n".join(str(text) for text in texts if text)


def _as_bytes(
    head: Mapping[str, Any], pooled_prompts: Sequence[PooledPrompt], fields: EmbeddingFields
) -> Response:
    """Return all numbers, concatenated; with `bytes`, a header `metadata` has their offsets."""
    parts = [
        encoding.as_bytes(each.pooled, fields.embed_dtype, fields.endianness)
        for each in pooled_prompts
    ]
    headers = {}
    items = []
    start = 0
    if fields.encoding_format == "bytes":
        for i, (part, each) in enumerate(zip(parts, pooled_prompts, strict=True)):
            span = {"start": start, "end": start + len(part), "shape": list(each.pooled.shape)}
            items.append(
                {
                    "index": i,
                    "embed_dtype": fields.embed_dtype,
                    "endianness": fields.endianness,
                    **span,
                }
            )
            start += len(part)
        metadata = {name: value for name, value in head.items() if name != "object"}
        headers["metadata"] = json.dumps({**metadata, "data": items})
    return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)
