"""`POST /v1/token_budget`: how many tokens a text or conversation takes, and how many are left for
the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.api import EngineConfig, InvalidRequest


class TokenBudget:
    """One route over one engine.

    The server refuses what raises `InvalidRequest`, in the API's own form.
    """

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
            raise InvalidRequest("body", "must hold either `text` or `messages`.")
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
            raise InvalidRequest("text", f"must be a text, not {type(body['text']).__name__}.")
        counted: list[int] = ids
        return counted
