"""`POST /v2/chat`: how Cohere's requests are read, and what writes their answers."""

from __future__ import annotations

import secrets
from typing import Final

from builtin_plugins.routes.cohere.fields import OTHERS, ChatFields
from builtin_plugins.routes.cohere.reading import (
    as_written,
    choice_of,
    decided,
    messages_of,
    response_format,
    template_kwargs,
    tools_of,
)
from builtin_plugins.routes.cohere.writing import ChatWriter
from builtin_plugins.routes.conversation.asked import Conversation
from core.api import InvalidRequest


class ChatForm:
    """Cohere's form of a conversation."""

    body: Final = ChatFields
    others: Final = OTHERS

    def __init__(self, *, cached_details: bool) -> None:
        self._cached_details = cached_details

    def streams(self, fields: ChatFields) -> bool:
        """Say whether the answer is told piece by piece."""
        return fields.stream

    def conversation(self, fields: ChatFields) -> Conversation:
        """Return what a request asks. Raises `InvalidRequest`."""
        return Conversation(
            messages=messages_of(fields),
            tools=tools_of(fields),
            tool_choice=choice_of(fields),
            sampling=response_format(fields),
            decided=decided(fields),
            thinking_token_budget=None if fields.thinking is None else fields.thinking.token_budget,
            template_kwargs=template_kwargs(fields),
            stream=fields.stream
            or fields.logprobs,  # piece by piece where it is told which tokens a text is made of
        )

    def writer(self, fields: ChatFields, model: str) -> ChatWriter:
        """Return what writes the answer, in which Cohere names no model."""
        thoughts = fields.thinking is None or fields.thinking.type == "enabled"
        return ChatWriter(
            f"chat-{secrets.token_hex(12)}", thoughts=thoughts, cached_details=self._cached_details
        )

    def refusal(self, error: InvalidRequest, fields: ChatFields) -> InvalidRequest:
        """Return a refusal in the client's words."""
        return as_written(error, forced=fields.tool_choice == "REQUIRED")
