"""Route group of OpenAI's API: paths, body schemas and the list of models."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.fields import SAMPLING_FIELDS
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.requests import (
    choose_model,
    display_names,
    listed_variants,
    now,
)
from builtin_plugins.routes.common.run_ledger import RunLedger
from builtin_plugins.routes.common.schema import body_schema, bounded_schemas, struct_schema
from builtin_plugins.routes.openai.answers import AnswerOptions
from builtin_plugins.routes.openai.chat import ChatCompletions
from builtin_plugins.routes.openai.chat_batch import ChatBatch
from builtin_plugins.routes.openai.completions import Completions
from builtin_plugins.routes.openai.fields import (
    MAX_PROMPTS,
    UNSERVED,
    WITHOUT_EFFECT,
    ChatFields,
    CompletionFields,
)
from builtin_plugins.routes.variants import Variant
from core.api import EngineConfig, SamplingParams
from core.api.features import KnownNames
from core.api.sampling import StructuredOutputsParams
from core.api.serving import ServedEngine

log = logging.getLogger(__name__)


class OpenAIRoutes:
    """OpenAI's API for one engine."""

    queries: Final[Mapping[str, Any]] = {
        "GET /v1/chat/completions/{completion_id}/events": {
            "starting_after": {"type": "integer", "minimum": -1, "maximum": 2**31},
        },
    }

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        options = AnswerOptions.from_options(config.options)
        self._engine = engine
        self._created = now()
        self._completions = Completions(engine, options)
        formats = OutputFormats.shared(engine, config.options)
        if formats.suggestion:
            log.info(
                "The chat template supports tools; %s let the model call them.",
                formats.suggestion,
            )
        runs = EventRuns.shared(engine)
        self._chat = ChatCompletions(
            engine, options, ChatPipeline(engine, formats), runs, RunLedger.shared(engine)
        )
        self._batch = ChatBatch(self._chat)
        self._strict = options.strict_fields

    async def started(self) -> None:
        """Continue the streams of an API process that has died."""
        await self._chat.restore()

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._model, methods=["GET"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
            Route(
                "/v1/chat/completions/{completion_id}/events", self._chat.resume, methods=["GET"]
            ),
            Route("/v1/chat/completions/batch", self._batch.create, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        return body_schemas(self._engine.fields, self._engine.vocab_size, strict=self._strict)

    async def _complete(self, request: Request) -> Any:
        return await self._completions(request)

    async def _answer(self, request: Request) -> Any:
        return await self._chat(request)

    async def _models(self, request: Request) -> JSONResponse:
        cards = [self._card(name) for name in display_names(self._engine)]
        cards += [self._variant_card(variant) for variant in listed_variants(self._engine)]
        ends = {
            "first_id": cards[0]["id"],
            "last_id": cards[-1]["id"],
            "has_more": False,
        }  # for Anthropic's clients
        return JSONResponse({"object": "list", "data": cards, **ends})

    async def _model(self, request: Request) -> JSONResponse:
        name = (await choose_model(self._engine, request.path_params["model"])).name
        variant = next((each for each in listed_variants(self._engine) if each.name == name), None)
        return JSONResponse(self._card(name) if variant is None else self._variant_card(variant))

    def _variant_card(self, variant: Variant) -> dict[str, Any]:
        parent = variant.parent or display_names(self._engine)[0]
        return {**self._card(variant.name), "root": variant.root, "parent": parent}

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "engine",
            "root": self._engine.source.name,
            "parent": None,
            "max_model_len": self._engine.max_model_len,
            "permission": [],
            "type": "model",  # this and what follows is for Anthropic's clients
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
            "max_input_tokens": self._engine.max_model_len,
        }


_RESPONSE_FORMAT: Final = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
        "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}},
    },
    "required": ["type"],
}
_MESSAGES: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "object"}},
                    {"type": "null"},
                ]
            },
        },
    },
}


def body_schemas(names: KnownNames, vocab_size: int, *, strict: bool) -> dict[str, dict[str, Any]]:
    """Return the schema of each path's body; `names` are the fields that features read."""
    others = _others(names)
    completions = body_schema(CompletionFields, others, strict=strict)
    completions["anyOf"] = [{"required": ["prompt"]}, {"required": ["prompt_embeds"]}]
    completions["properties"]["prompt"] = _prompt(vocab_size)
    chat = body_schema(ChatFields, others, strict=strict)
    chat["properties"]["messages"] = _MESSAGES
    conversations = {"type": "array", "minItems": 1, "items": _MESSAGES}
    batch = {**chat, "properties": {**chat["properties"], "messages": conversations}}
    return {
        "/v1/completions": completions,
        "/v1/chat/completions": chat,
        "/v1/chat/completions/batch": batch,
    }


def _prompt(vocab_size: int) -> dict[str, Any]:
    """Return the schema of a prompt: a text, token ids, or a list of either."""
    text = {"type": "string", "minLength": 1}
    ids = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
    }
    several = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_PROMPTS,
        "items": {"anyOf": [text, ids]},
    }
    return {"anyOf": [text, ids, several]}


def _others(names: KnownNames) -> dict[str, Any]:
    others: dict[str, Any] = dict(bounded_schemas(SamplingParams, SAMPLING_FIELDS))
    stop = others.pop("stop")
    annotations = {name: stop.pop(name) for name in ("description", "default")}
    others["stop"] = {**annotations, "anyOf": [{"type": "string", "minLength": 1}, stop]}
    others["response_format"] = _RESPONSE_FORMAT
    others["structured_outputs"] = struct_schema(StructuredOutputsParams, ("backend",))
    others |= {name: {"description": "Has no effect."} for name in WITHOUT_EFFECT}
    for name, (neutral, missing) in UNSERVED.items():
        distinct = [value for i, value in enumerate(neutral) if value not in neutral[:i]]
        others[name] = {"description": f"{missing}.", "enum": [*distinct, None]}
    return others | {name: {"description": "Read by a plugin."} for name in names.read}
