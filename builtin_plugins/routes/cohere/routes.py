"""Route group of Cohere's API: `POST /v2/chat`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.routing import Route

from builtin_plugins.routes.cohere.fields import OTHERS, ChatFields
from builtin_plugins.routes.cohere.reading import (
    choice_of,
    messages_of,
    response_format,
    sampling_overrides,
    template_kwargs,
    tools_of,
    with_client_names,
)
from builtin_plugins.routes.cohere.writing import ChatWriter
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.message_endpoint import MessageEndpoint
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.error_forms import cohere_error
from core.api import EngineConfig, InvalidRequest
from core.api.serving import ServedEngine

PATH = "/v2/chat"


class CohereRoutes:
    """Cohere's chat API for one engine."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        options = config.options
        self._engine = engine
        self._strict = bool(options.get("strict_fields"))
        form = ChatProtocol(cached_details=bool(options.get("enable_prompt_tokens_details")))
        conversations = ChatPipeline(engine, OutputFormats.shared(engine, options))
        self._chat = MessageEndpoint(engine, conversations, form, strict=self._strict)

    def routes(self) -> Sequence[Route]:
        """Return the route."""
        return [Route(PATH, self._chat.answer, methods=["POST"])]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of the path's body."""
        return {
            PATH: body_schema(ChatFields, OTHERS.schemas(self._engine.fields), strict=self._strict)
        }

    def refusal(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return an error in Cohere's form."""
        return cohere_error(status, error)


class ChatProtocol:
    """Cohere's chat API as a `ChatProtocol`."""

    body: Final = ChatFields
    others: Final = OTHERS

    def __init__(self, *, cached_details: bool) -> None:
        self._cached_details = cached_details

    def streams(self, fields: ChatFields) -> bool:
        """Return whether the answer is streamed."""
        return fields.stream

    def conversation(self, fields: ChatFields) -> Conversation:
        """Return the conversation of a request. Raises `InvalidRequest`."""
        return Conversation(
            messages=messages_of(fields),
            tools=tools_of(fields),
            tool_choice=choice_of(fields),
            sampling=response_format(fields),
            overrides=sampling_overrides(fields),
            thinking_token_budget=None if fields.thinking is None else fields.thinking.token_budget,
            template_kwargs=template_kwargs(fields),
            thinking=None if fields.thinking is None else fields.thinking.type == "enabled",
            stream=fields.stream or fields.logprobs,  # deltas assign log-probabilities to texts
        )

    def writer(self, fields: ChatFields, model: str) -> ChatWriter:
        """Return the writer of the answer, which does not name the model."""
        thoughts = fields.thinking is None or fields.thinking.type == "enabled"
        return ChatWriter(
            f"chat-{secrets.token_hex(12)}", thoughts=thoughts, cached_details=self._cached_details
        )

    def refusal(self, error: InvalidRequest, fields: ChatFields) -> InvalidRequest:
        """Return an error that names the field as the client wrote it."""
        return with_client_names(error, forced=fields.tool_choice == "REQUIRED")
