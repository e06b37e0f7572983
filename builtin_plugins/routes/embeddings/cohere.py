"""`POST /v2/embed`: embeddings in Cohere's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.embeddings import encoding
from builtin_plugins.routes.embeddings.fields import EmbedFields
from builtin_plugins.routes.embeddings.service import (
    Job,
    PooledPrompt,
    PoolingService,
    as_response,
    read_sides,
)
from core.api import InvalidRequest, did_you_mean

_PROMPT_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": (),
    "clustering": (),
}
"""Names that models give to the prompt of an input type, by Cohere's input type."""


class CohereEmbeddings:
    """Endpoint `/v2/embed`."""

    def __init__(self, pools: PoolingService) -> None:
        self._pools = pools

    async def embed(self, request: Request) -> Response:
        """An embedding of each text, in every requested type."""
        return await self._pools.answer(request, EmbedFields, "embd", self._embed)

    async def _embed(self, job: Job[EmbedFields]) -> Response:
        fields = job.fields
        kinds = fields.embedding_types or ["float"]
        task = self._pools.supported_task("embed")
        if (fields.texts is None) == (fields.inputs is None):
            raise InvalidRequest("texts", "give either texts or inputs.")
        name = "texts" if fields.inputs is None else "inputs"
        sides = read_sides(name, getattr(fields, name))
        if fields.truncate == "START":
            raise InvalidRequest(
                "truncate",
                "START is not served: what is cut off are ends of texts; use END or NONE.",
            )
        params = fields.params(task=task, dimensions=fields.output_dimension)
        if fields.truncate == "END":
            params = params.clone(truncate_prompt_tokens=fields.max_tokens or -1)
        pooled_prompts = await self._pools.pool(
            job, self._pools.alone(sides), params, self._prompt_name(fields.input_type)
        )
        longest = max(each.num_tokens for each in pooled_prompts)
        if fields.max_tokens is not None and longest > fields.max_tokens:
            raise InvalidRequest(
                "max_tokens",
                f"{fields.max_tokens} are less than the {longest} of a text; truncate END.",
            )
        count = self._pools.usage(pooled_prompts)["prompt_tokens"]
        return as_response(
            {
                "id": job.id,
                "embeddings": {
                    kind: [_encoded(kind, each) for each in pooled_prompts] for kind in kinds
                },
                "texts": [side for side in sides if isinstance(side, str)],
                "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": count}},
            }
        )

    def _prompt_name(self, input_type: str | None) -> str | None:
        """Return the name of the model's prompt for an input type; None: the model's default.

        Cohere's own input types have no effect on models without a prompt for them.
        """
        if input_type is None:
            return None
        sentence = self._pools.engine.source.sentence
        prompts: Mapping[str, str] = {} if sentence is None else sentence.prompts
        found = next(
            (name for name in (input_type, *_PROMPT_NAMES.get(input_type, ())) if name in prompts),
            None,
        )
        if found is None and input_type not in _PROMPT_NAMES:
            known = sorted({*prompts, *_PROMPT_NAMES})
            hint = did_you_mean(input_type, known)
            raise InvalidRequest(
                "input_type", f"{input_type!r} is not known{hint}. Known: {', '.join(known)}."
            )
        return found


def _encoded(kind: str, pooled_prompts: PooledPrompt) -> Any:
    if kind == "float":
        return encoding.as_json(pooled_prompts.pooled)
    if kind == "base64":
        return encoding.as_base64(pooled_prompts.pooled, endianness="little")
    size = pooled_prompts.pooled.shape[-1]
    if size % 8:
        raise InvalidRequest(
            "embedding_types",
            f"{kind} holds eight numbers a byte, and embeddings here have {size}.",
        )
    return encoding.as_bits(pooled_prompts.pooled, signed=kind == "binary")
