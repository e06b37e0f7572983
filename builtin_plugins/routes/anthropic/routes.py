"""Route group of Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from builtin_plugins.routes.anthropic.fields import OTHERS, CountFields, MessagesFields
from builtin_plugins.routes.anthropic.reading import (
    choice_of,
    continues_final,
    messages_of,
    response_format,
    tools_of,
    with_client_names,
)
from builtin_plugins.routes.anthropic.writing import MessageWriter
from builtin_plugins.routes.common.body import client_name, reserve_bytes
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.media_parts import served_modalities
from builtin_plugins.routes.common.message_endpoint import MessageEndpoint
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.requests import choose_model
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.error_forms import anthropic_error
from core.api import EngineConfig, InvalidRequest
from core.api.serving import ServedEngine


class AnthropicRoutes:
    """Anthropic's API for one engine."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        options = config.options
        self._engine = engine
        self._strict = bool(options.get("strict_fields"))
        conversations = ChatPipeline(engine, OutputFormats.shared(engine, options))
        form = MessagesProtocol(
            can_limit_thinking=conversations.can_limit_thinking,
            cached_details=bool(options.get("enable_prompt_tokens_details")),
        )
        self._messages = MessageEndpoint(engine, conversations, form, strict=self._strict)
        self._count = CountTokens(engine, conversations, strict=self._strict)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/v1/messages", self._messages.answer, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count.answer, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        others = OTHERS.schemas(self._engine.fields)
        structs: dict[str, Any] = {
            "/v1/messages": MessagesFields,
            "/v1/messages/count_tokens": CountFields,
        }
        return {
            path: body_schema(struct, others, strict=self._strict)
            for path, struct in structs.items()
        }

    def refusal(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return an error in Anthropic's form."""
        return anthropic_error(status, error)


class MessagesProtocol:
    """Anthropic's Messages API as a `ChatProtocol`."""

    body: Final = MessagesFields
    others: Final = OTHERS

    def __init__(self, *, can_limit_thinking: bool, cached_details: bool) -> None:
        self._can_limit_thinking = can_limit_thinking
        self._cached_details = cached_details

    def streams(self, fields: MessagesFields) -> bool:
        """Return whether the answer is streamed."""
        return fields.stream

    def conversation(self, fields: MessagesFields) -> Conversation:
        """Return the conversation of a request. Raises `InvalidRequest`."""
        conversation = prompt_of(fields)
        # The budget is a hint: Claude Code sends one to every model.
        if fields.thinking is not None and self._can_limit_thinking:
            conversation.thinking_token_budget = fields.thinking.budget_tokens
        conversation.overrides = {"max_tokens": fields.max_tokens, "stop": fields.stop_sequences}
        conversation.stream = fields.stream
        return conversation

    def writer(self, fields: MessagesFields, model: str) -> MessageWriter:
        """Return the writer of the answer."""
        thinking = fields.thinking
        thoughts = (
            ""
            if thinking is None or thinking.type == "disabled"
            else thinking.display or "summarized"
        )
        message_id = f"msg_{secrets.token_hex(12)}"
        return MessageWriter(
            message_id, model, thoughts=thoughts, cached_details=self._cached_details
        )

    def refusal(self, error: InvalidRequest, fields: MessagesFields) -> InvalidRequest:
        """Return an error that names the field as the client wrote it."""
        choice = fields.tool_choice
        return with_client_names(
            error, forced=choice is not None and choice.type in ("any", "tool")
        )


class CountTokens:
    """Endpoint `/v1/messages/count_tokens`."""

    def __init__(self, engine: ServedEngine, conversations: ChatPipeline, *, strict: bool) -> None:
        self._engine = engine
        self._pipeline = conversations
        self._strict = strict

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        parsed = await OTHERS.read(
            request,
            CountFields,
            self._engine.fields,
            strict=self._strict,
            modalities=served_modalities(self._engine),
        )
        await choose_model(self._engine, parsed.fields.model)
        try:
            conversation = await asyncio.to_thread(prompt_of, parsed.fields)
            conversation.client = client_name(request)
            conversation.reserve = reserve_bytes(request)
            conversation.cache_salt = parsed.fields.cache_salt
            count = await while_connected(request, self._pipeline.count(conversation))
        except InvalidRequest as error:
            raise with_client_names(error, forced=False) from None
        body = msgspec.json.encode({"input_tokens": count})
        return Response(body, media_type="application/json", headers=parsed.headers)


def prompt_of(fields: CountFields) -> Conversation:
    """Return the conversation of a request, without its sampling. Raises `InvalidRequest`."""
    messages = messages_of(fields)
    choice, parallel = choice_of(fields)
    return Conversation(
        messages=messages,
        tools=tools_of(fields.tools),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=response_format(fields),
        template_kwargs=fields.chat_template_kwargs,
        thinking=None if fields.thinking is None else fields.thinking.type != "disabled",
        effort=None if fields.output_config is None else fields.output_config.effort,
        effort_field="output_config.effort",
        continue_final_message=continues_final(messages),
    )
