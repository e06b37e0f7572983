"""`POST /v1/token_budget`: number of prompt tokens, and of tokens left for the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.api import EngineConfig, InvalidRequest


class TokenBudget:
    """One route of one engine. The server converts `InvalidRequest` to the API's error format."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route]:
        """Return the route."""
        return [Route("/v1/token_budget", self._count, methods=["POST"])]

    async def _count(self, request: Request) -> JSONResponse:
        try:
            body = json.loads(await request.body())
        except ValueError as error:
            raise InvalidRequest("body", f"is not JSON: {error}.") from error
        if not isinstance(body, dict) or len({"text", "messages"} & set(body)) != 1:
            raise InvalidRequest("body", "expected either `text` or `messages`.")
        tokens = len(await self._tokens(body))
        room = max(0, self._engine.max_model_len - tokens)
        return JSONResponse(
            {"tokens": tokens, "max_model_len": self._engine.max_model_len, "room": room}
        )

    async def _tokens(self, body: dict[str, Any]) -> list[int]:
        if "messages" in body:
            _, ids = await self._engine.render_chat(body["messages"])
        elif isinstance(body["text"], str):
            ids = await self._engine.tokenize(body["text"])
        else:
            raise InvalidRequest("text", f"got a {type(body['text']).__name__}; expected a string.")
        counted: list[int] = ids
        return counted
