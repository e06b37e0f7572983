"""`POST /invocations`: a body is handed to the route that takes such bodies.

Knows paths, and no other route group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.routes.common.body import MAX_CONTEXTS, decode_json, read_body
from builtin_plugins.routes.common.json_limits import check_json_size, limits_for
from core.api import EngineConfig, InvalidRequest
from core.api.serving import ServedEngine

_GENERATING: Final[Sequence[tuple[Set[str], str]]] = (
    ({"messages"}, "/v1/chat/completions"),
    ({"input"}, "/v1/responses"),
)
_POOLED: Final[Sequence[tuple[Set[str], str]]] = (
    ({"query"}, "/rerank"),
    ({"text_1", "queries", "data_1"}, "/score"),
    ({"texts", "inputs"}, "/v2/embed"),
)
"""Paths of bodies with one of these fields, for generating and for pooling models."""
PATH: Final = "/invocations"
_BY_TASK: Final = {"embed": "/v1/embeddings", "classify": "/classify"}


class InvocationRoutes:
    """One path; which route is meant is decided by the model's task, and by the names of a body's
    fields.
    """

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route]:
        """Return the route."""
        return [Route(PATH, self._invoke, methods=["POST"])]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of the body: the fields are those of the route that is meant."""
        description = "A request of another route."
        properties = {"stream": {"type": ["boolean", "null"]}}
        return {
            PATH: {
                "title": "Invocation",
                "description": description,
                "type": "object",
                "properties": properties,
            }
        }

    async def _invoke(self, request: Request) -> ASGIApp:
        """Forward the body to its route."""
        body = await read_body(request)
        await check_json_size(body, limits_for(MAX_CONTEXTS * self._engine.max_model_len))
        fields = decode_json(body)
        if not isinstance(fields, dict):
            raise InvalidRequest("body", "must be a JSON object with the fields of a request.")
        return _Forwarded(self._path(fields), body)

    def _path(self, names: Mapping[str, Any]) -> str:
        pooling = self._engine.pooling
        usual = "/v1/completions" if pooling is None else _BY_TASK.get(pooling.tasks[0], "/pooling")
        meant = _GENERATING if pooling is None else _POOLED
        return next((path for fields, path in meant if fields & names.keys()), usual)


class _Forwarded:
    """A response by another route."""

    def __init__(self, path: str, body: bytes) -> None:
        self._path = path
        self._body: bytes | None = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route at the other path with the body."""

        async def replayed() -> Message:
            body = self._body
            self._body = None
            if body is None:
                return await receive()
            return {"type": "http.request", "body": body, "more_body": False}

        there = {**scope, "path": self._path, "raw_path": self._path.encode()}
        await scope["router"](there, replayed, send)
