"""The route group: paths, schemas of bodies, and errors in Anthropic's form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.routing import Route

from builtin_plugins.routes.anthropic.fields import OTHERS, CountFields, MessagesFields
from builtin_plugins.routes.anthropic.messages import CountTokens, MessagesForm
from builtin_plugins.routes.conversation.endpoint import MessageEndpoint
from builtin_plugins.routes.conversation.formats import Formats
from builtin_plugins.routes.conversation.pipeline import Conversations
from builtin_plugins.routes.schema import body_schema
from core.api import TOO_LONG, EngineConfig

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NUMBERS: Final = re.compile(r"(\d+) tokens\b.* the context holds (\d+)")


class AnthropicRoutes:
    """Anthropic's API over one engine."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        options = config.options
        self._engine = engine
        self._strict = bool(options.get("strict_fields"))
        conversations = Conversations(engine, Formats.shared(engine, options))
        form = MessagesForm(
            limits_thinking=conversations.limits_thinking,
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
        """Return an error in Anthropic's form; the field and the code stand beside what is
        Anthropic's.
        """
        if error["code"] == TOO_LONG:  # agents look for these words, and shorten the conversation
            numbers = _NUMBERS.search(error["message"])
            said = f": {numbers[1]} tokens > {numbers[2]} maximum" if numbers else ""
            error = {**error, "message": f"prompt is too long{said}"}
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {**error, "type": kind}, "request_id": None}
