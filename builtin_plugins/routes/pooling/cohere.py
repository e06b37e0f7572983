"""`POST /v2/embed`: embeddings as Cohere's clients ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.pooling import numbers
from builtin_plugins.routes.pooling.fields import EmbedFields
from builtin_plugins.routes.pooling.inputs import read_texts
from builtin_plugins.routes.pooling.service import Answered, Job, Pools, as_response
from core.api import InvalidRequest, did_you_mean

_MEANT: Final[Mapping[str, Sequence[str]]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": (),
    "clustering": (),
}
"""Cohere's purposes of texts, and names under which models keep a prompt for one."""


class CohereEmbeddings:
    """The endpoint."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def embed(self, request: Request) -> Response:
        """An embedding of each text, in every type that is asked for."""
        return await self._pools.answer(request, EmbedFields, "embd", self._embed)

    async def _embed(self, job: Job[EmbedFields]) -> Response:
        fields = job.fields
        kinds = fields.embedding_types or ["float"]
        task = self._pools.served("embed")
        if (fields.texts is None) == (fields.inputs is None):
            raise InvalidRequest("texts", "give either texts or inputs.")
        texts = (
            read_texts("texts", fields.texts)
            if fields.inputs is None
            else read_texts("inputs", fields.inputs)
        )
        if fields.truncate == "START":
            raise InvalidRequest(
                "truncate",
                "START is not served: what is cut off are ends of texts; use END or NONE.",
            )
        params = fields.params(task=task, dimensions=fields.output_dimension)
        if fields.truncate == "END":
            params = params.clone(truncate_prompt_tokens=fields.max_tokens or -1)
        answered = await self._pools.pool(job, texts, params, self._prompt_name(fields.input_type))
        longest = max(each.num_tokens for each in answered)
        if fields.max_tokens is not None and longest > fields.max_tokens:
            raise InvalidRequest(
                "max_tokens",
                f"{fields.max_tokens} are less than the {longest} of a text; truncate END.",
            )
        count = self._pools.usage(answered)["prompt_tokens"]
        return as_response(
            {
                "id": job.id,
                "embeddings": {kind: [_shown(kind, each) for each in answered] for kind in kinds},
                "texts": texts,
                "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": count}},
            }
        )

    def _prompt_name(self, wanted: str | None) -> str | None:
        """Return which of the model's named prompts is put before texts of such a type; None: its
        usual one, if any.

        A name of Cohere's asks for nothing where the model has no prompt for it.
        """
        if wanted is None:
            return None
        sentence = self._pools.engine.source.sentence
        prompts: Mapping[str, str] = {} if sentence is None else sentence.prompts
        found = next((name for name in (wanted, *_MEANT.get(wanted, ())) if name in prompts), None)
        if found is None and wanted not in _MEANT:
            known = sorted({*prompts, *_MEANT})
            hint = did_you_mean(wanted, known)
            raise InvalidRequest(
                "input_type", f"{wanted!r} is not known{hint}. Known: {', '.join(known)}."
            )
        return found


def _shown(kind: str, answered: Answered) -> Any:
    if kind == "float":
        return numbers.as_json(answered.pooled)
    if kind == "base64":
        return numbers.as_base64(answered.pooled, endianness="little")
    size = answered.pooled.shape[-1]
    if size % 8:
        raise InvalidRequest(
            "embedding_types",
            f"{kind} holds eight numbers a byte, and embeddings here have {size}.",
        )
    return numbers.as_bits(answered.pooled, signed=kind == "binary")
