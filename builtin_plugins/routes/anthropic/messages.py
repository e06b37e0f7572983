"""`POST /v1/messages`, how Anthropic's requests are read and what writes their answers; `POST
/v1/messages/count_tokens`.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.anthropic.fields import OTHERS, CountFields, MessagesFields
from builtin_plugins.routes.anthropic.reading import (
    as_written,
    choice_of,
    goes_on,
    messages_of,
    response_format,
    template_kwargs,
    tools_of,
)
from builtin_plugins.routes.anthropic.writing import MessageWriter
from builtin_plugins.routes.body import client_of
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.pipeline import Conversations
from builtin_plugins.routes.conversation.running import choose_model
from builtin_plugins.routes.streams import while_connected
from core.api import InvalidRequest


class MessagesForm:
    """Anthropic's form of a conversation."""

    body: Final = MessagesFields
    others: Final = OTHERS

    def __init__(self, *, limits_thinking: bool, cached_details: bool) -> None:
        self._limits_thinking = limits_thinking
        self._cached_details = cached_details

    def streams(self, fields: MessagesFields) -> bool:
        """Say whether the answer is told piece by piece."""
        return fields.stream

    def conversation(self, fields: MessagesFields) -> Conversation:
        """Return what a request asks. Raises `InvalidRequest`."""
        asked = prompt_of(fields)
        # A budget is more of a wish: Claude Code sends one to every model.
        if fields.thinking is not None and self._limits_thinking:
            asked.thinking_token_budget = fields.thinking.budget_tokens
        asked.decided = {"max_tokens": fields.max_tokens, "stop": fields.stop_sequences}
        asked.stream = fields.stream
        return asked

    def writer(self, fields: MessagesFields, model: str) -> MessageWriter:
        """Return what writes the answer."""
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
        """Return a refusal in the client's words."""
        choice = fields.tool_choice
        return as_written(error, forced=choice is not None and choice.type in ("any", "tool"))


class CountTokens:
    """Answers how many tokens the prompt of a request would have."""

    def __init__(self, engine: Any, conversations: Conversations, *, strict: bool) -> None:
        self._engine = engine
        self._conversations = conversations
        self._strict = strict

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        parsed = await OTHERS.read(request, CountFields, self._engine.fields, strict=self._strict)
        await choose_model(self._engine, parsed.fields.model)
        try:
            asked = await asyncio.to_thread(prompt_of, parsed.fields)
            asked.client = client_of(request)
            count = await while_connected(request, self._conversations.count(asked))
        except InvalidRequest as error:
            raise as_written(error, forced=False) from None
        body = msgspec.json.encode({"input_tokens": count})
        return Response(body, media_type="application/json", headers=parsed.headers)


def prompt_of(fields: CountFields) -> Conversation:
    """Return what makes the prompt of a request, and the form of its answer.

    Raises `InvalidRequest`.
    """
    messages = messages_of(fields)
    choice, parallel = choice_of(fields)
    return Conversation(
        messages=messages,
        tools=tools_of(fields.tools),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=response_format(fields),
        template_kwargs=template_kwargs(fields),
        continue_final_message=goes_on(messages),
    )
