"""The route group: the path, the schema of its body, and errors in Cohere's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.routing import Route

from builtin_plugins.routes.cohere.chat import ChatForm
from builtin_plugins.routes.cohere.fields import OTHERS, ChatFields
from builtin_plugins.routes.conversation.endpoint import MessageEndpoint
from builtin_plugins.routes.conversation.formats import Formats
from builtin_plugins.routes.conversation.pipeline import Conversations
from builtin_plugins.routes.schema import body_schema
from core.api import EngineConfig

PATH = "/v2/chat"


class CohereRoutes:
    """Cohere's chat over one engine."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        options = config.options
        self._engine = engine
        self._strict = bool(options.get("strict_fields"))
        form = ChatForm(cached_details=bool(options.get("enable_prompt_tokens_details")))
        conversations = Conversations(engine, Formats.shared(engine, options))
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
        """Return an error in Cohere's form; field and code stand beside what is Cohere's."""
        return dict(error)
