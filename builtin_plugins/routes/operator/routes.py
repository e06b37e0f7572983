"""What operators do to a running engine. Every route is a 404 unless `--enable-operator-routes` is given."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from builtin_plugins.routes.body import read_request
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.names import names_of
from builtin_plugins.routes.operator.pausing import NAME
from builtin_plugins.routes.schema import body_schema
from core.api import EngineConfig, InvalidRequest

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Between two looks whether what runs has ended."""
_SECRETS: Final = ("token", "key", "password", "secret")
_MODES: Final = ("abort", "wait", "keep")
_MISSING: Final[Mapping[str, tuple[str, str]]] = {
    "/reset_mm_cache": ("POST", "a cache of images and audio: this engine reads text"),
    "/reset_encoder_cache": ("POST", "a cache of encoder outputs: an encoder is a part of its request's first step"),
    "/start_profile": ("POST", "a profiler"),
    "/stop_profile": ("POST", "a profiler"),
    "/sleep": ("POST", "sleep mode; /pause keeps weights and caches where they are"),
    "/wake_up": ("POST", "sleep mode; /resume ends a pause"),
    "/is_sleeping": ("GET", "sleep mode; /is_paused tells of a pause"),
}
"""vLLM's routes for what is not there: the method, and what is missing."""


class CallFields(msgspec.Struct, kw_only=True):
    """Body of `/collective_rpc`."""

    method: str
    """`feature.verb`"""
    data: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class AbortFields(msgspec.Struct, kw_only=True):
    """Body of `/abort_requests`."""

    request_ids: list[str] = []
    """As answers show them; none: all."""


class OperatorRoutes:
    """The routes over one engine."""

    switch: Final = "enable_operator_routes"

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
        self._config = config
        options = config.options
        self._on = bool(options.get(self.switch))
        self._aborts = self._on or bool(options.get("tokens_only"))
        self._calls: Sequence[str] = options.get("operator_calls") or ()
        self._strict = bool(options.get("strict_fields"))
        if self._on and not options.get("api_key"):
            log.warning("whoever reaches the port may pause the server and read its settings; give an --api-key")

    def routes(self) -> Sequence[Route]:
        """Return the routes, or none."""
        aborts = [Route("/abort_requests", self._abort, methods=["POST"])] if self._aborts else []
        if not self._on:
            return aborts
        return [
            *aborts,
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._resume, methods=["POST"]),
            Route("/is_paused", self._is_paused, methods=["GET"]),
            Route("/reset_prefix_cache", self._reset_prefix_cache, methods=["POST"]),
            Route("/server_info", self._server_info, methods=["GET"]),
            Route("/collective_rpc", self._call, methods=["POST"]),
            *(Route(path, self._refuse, methods=[method]) for path, (method, _) in _MISSING.items()),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        structs: dict[str, type[msgspec.Struct]] = {"/collective_rpc": CallFields, "/abort_requests": AbortFields}
        return {path: body_schema(struct, strict=self._strict) for path, struct in structs.items()}

    async def _pause(self, request: Request) -> JSONResponse:
        """Stop computing: end what runs (`mode=abort`), wait until it has ended (`wait`), or keep it for later (`keep`)."""
        mode = request.query_params.get("mode", "abort")
        if mode not in _MODES:
            raise InvalidRequest("mode", f"must be one of {', '.join(_MODES)}, not {mode[:100]!r}.")
        if mode == "wait":
            _, running = await self._pausing("end")
            while running:
                await asyncio.sleep(POLL_S)
                paused, running = await self._pausing("state")
                if not paused:
                    raise HTTPException(409, "the server was told to go on before what ran had ended.")
        await self._pausing("rest")
        if mode == "abort":
            await self._end(self._engine.open_ids())
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> JSONResponse:
        """Go on."""
        await self._pausing("go_on")
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> JSONResponse:
        """Tell whether the engine rests."""
        paused, _ = await self._pausing("state")
        return JSONResponse({"is_paused": paused})

    async def _pausing(self, verb: str) -> tuple[bool, int]:
        """Return whether the engine is paused, and how many requests run."""
        answer, *_ = await self._engine.call(f"{NAME}.{verb}")
        paused, running = answer.split()
        return paused == b"1", int(running)

    async def _abort(self, request: Request) -> JSONResponse:
        """End requests by the ids that their answers show; without ids, all."""
        parsed = await read_request(request, AbortFields, strict=self._strict)
        wanted, ids = set(parsed.fields.request_ids), self._engine.open_ids()
        if wanted:
            ids = [each for each in ids if wanted & names_of(each)]
        await self._end(ids)
        return JSONResponse({"status": "aborted", "aborted": len(ids)}, headers=parsed.headers)

    async def _end(self, ids: Sequence[str]) -> None:
        await asyncio.gather(*(self._engine.abort(each) for each in ids))

    async def _reset_prefix_cache(self, request: Request) -> JSONResponse:
        """Forget all cached beginnings of prompts."""
        if not await self._engine.reset_prefix_cache():
            raise HTTPException(409, "requests are running, and hold blocks of the cache; pause first, or try again.")
        return JSONResponse({"status": "reset"})

    async def _server_info(self, request: Request) -> Response:
        """Tell the configuration in force, secrets left out, and the plugins in use."""
        plugins = [ref.name for ref in self._engine.registry.plan.plugins]
        config = _shown(dataclasses.asdict(self._config))
        value = {"version": metadata.version("core"), "config": config, "plugins": plugins}
        return Response(msgspec.json.encode(value, enc_hook=str), media_type="application/json")

    async def _call(self, request: Request) -> JSONResponse:
        """Make a call of a feature, one of those that `--operator-calls` names."""
        parsed = await read_request(request, CallFields, strict=self._strict)
        fields = parsed.fields
        if fields.method not in self._calls:
            named = ", ".join(self._calls) or "none"
            raise InvalidRequest(
                "method", f"{fields.method[:100]!r} is none of those that --operator-calls names: {named}."
            )
        if fields.args or fields.kwargs:
            raise InvalidRequest("args", "is not served: a call brings a text; give it as `data`.")
        try:
            async with asyncio.timeout(fields.timeout):
                answers = await self._engine.call(fields.method, fields.data.encode())
        except InvalidRequest as error:
            raise as_typed(error, {"name": "method"}) from None
        return JSONResponse({"results": [each.decode(errors="replace") for each in answers]}, headers=parsed.headers)

    async def _refuse(self, request: Request) -> JSONResponse:
        """Say what is missing."""
        missing = next(what for path, (_, what) in _MISSING.items() if request.url.path.endswith(path))
        raise HTTPException(404, {"message": f"this version has not got {missing}.", "code": "not_served"})


def _shown(value: Any, name: str = "") -> Any:
    """Return settings with secrets left out."""
    if isinstance(value, Mapping):
        return {str(key): _shown(item, str(key)) for key, item in value.items()}
    return "***" if value and isinstance(value, (str, list)) and name.endswith(_SECRETS) else value
