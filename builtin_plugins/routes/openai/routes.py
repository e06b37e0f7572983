"""The route group: paths, and the list of models."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.routes.conversation.formats import Formats
from builtin_plugins.routes.conversation.pipeline import Conversations
from builtin_plugins.routes.conversation.running import (
    choose_model,
    listed_variants,
    now,
    shown_names,
)
from builtin_plugins.routes.openai.answers import AnswerOptions
from builtin_plugins.routes.openai.bodies import bodies
from builtin_plugins.routes.openai.chat import ChatCompletions
from builtin_plugins.routes.openai.completions import Completions
from core.api import EngineConfig
from core.contracts.variants import Variant

log = logging.getLogger(__name__)


class OpenAIRoutes:
    """OpenAI's API over one engine."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        options = AnswerOptions.from_options(config.options)
        self._engine = engine
        self._created = now()
        self._completions = Completions(engine, options)
        formats = Formats.shared(engine, config.options)
        if formats.suggestion:
            log.info(
                "The chat template takes tools; %s let the model decide to call them.",
                formats.suggestion,
            )
        self._chat = ChatCompletions(engine, options, Conversations(engine, formats))
        self._strict = options.strict_fields

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._model, methods=["GET"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        return bodies(self._engine.fields, self._engine.vocab_size, strict=self._strict)

    async def _complete(self, request: Request) -> Any:
        return await self._completions(request)

    async def _answer(self, request: Request) -> Any:
        return await self._chat(request)

    async def _models(self, request: Request) -> JSONResponse:
        cards = [self._card(name) for name in shown_names(self._engine)]
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
        parent = variant.parent or shown_names(self._engine)[0]
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
