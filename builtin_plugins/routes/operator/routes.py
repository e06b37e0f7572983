"""What operators do to a running engine.

Every route is a 404 unless `--enable-operator-routes` is given.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from builtin_plugins.routes.operator.profiling import NAME as PROFILING
from builtin_plugins.routes.operator.profiling import Settings
from builtin_plugins.routes.operator.sleep_calls import EMPTY_S, checked_level, checked_tags
from builtin_plugins.routes.operator.sleeping import NAME as SLEEPING
from builtin_plugins.routes.plugin_health import Faults, plugin_health
from builtin_plugins.routes.schema import body_schema
from core.api import EngineConfig, EngineError, InvalidRequest
from core.contracts.faults import faults_of

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Between two looks whether what runs has ended."""
ANSWER_S: Final = 1.0
"""As long the engine is waited for when its plugins' faults are asked: one in a long step is left
out.
"""
_SECRETS: Final = ("token", "key", "password", "secret")
_MODES: Final = ("abort", "wait", "keep")
_MISSING: Final[Mapping[str, tuple[str, str]]] = {
    "/reset_mm_cache": ("POST", "a cache of images and audio: this engine reads text"),
    "/reset_encoder_cache": (
        "POST",
        "a cache of encoder outputs: an encoder is a part of its request's first step",
    ),
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
    queries: Final[Mapping[str, Any]] = {
        "POST /pause": {"mode": {"enum": list(_MODES), "default": _MODES[0]}}
    }

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
        self._config = config
        options = config.options
        self._on = bool(options.get(self.switch))
        self._aborts = self._on or bool(options.get("tokens_only"))
        self._calls: Sequence[str] = options.get("operator_calls") or ()
        self._strict = bool(options.get("strict_fields"))
        self._sleeps = self._on and bool(options.get("enable_sleep_mode"))
        self._profiles = self._on and Settings.of(options.get("profiler_config") or {}) is not None
        if self._on and not options.get("api_key"):
            log.warning(
                "whoever reaches the port may pause the server and read its settings; give an "
                "--api-key"
            )

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
            Route("/sleep", self._sleep, methods=["POST"]),
            Route("/wake_up", self._wake_up, methods=["POST"]),
            Route("/is_sleeping", self._is_sleeping, methods=["GET"]),
            Route("/start_profile", self._start_profile, methods=["POST"]),
            Route("/stop_profile", self._stop_profile, methods=["POST"]),
            *(
                Route(path, self._refuse, methods=[method])
                for path, (method, _) in _MISSING.items()
            ),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        structs: dict[str, type[msgspec.Struct]] = {
            "/collective_rpc": CallFields,
            "/abort_requests": AbortFields,
        }
        return {path: body_schema(struct, strict=self._strict) for path, struct in structs.items()}

    async def _pause(self, request: Request) -> JSONResponse:
        """Stop computing: end what runs (`mode=abort`), wait until it has ended (`wait`), or keep
        it for later (`keep`).
        """
        mode = request.query_params.get("mode", "abort")
        if mode not in _MODES:
            raise InvalidRequest("mode", f"must be one of {', '.join(_MODES)}, not {mode[:100]!r}.")
        if mode == "wait":
            _, running = await self._pausing("end")
            while running:
                await asyncio.sleep(POLL_S)
                paused, running = await self._pausing("state")
                if not paused:
                    raise HTTPException(
                        409, "the server was told to go on before what ran had ended."
                    )
        await self._pausing("rest")
        if mode == "abort":
            await self._end(self._engine.open_ids())
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> JSONResponse:
        """Go on."""
        if self._sleeps:
            await self._wake(b"")
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

    async def _sleep(self, request: Request) -> JSONResponse:
        """End what runs, forget the prefix cache, and give memory back: that of the KV cache, at
        level 2 the weights', too.
        """
        self._check_sleeps()
        level = checked_level(request.query_params.get("level", "1"))
        await self._pausing("rest")
        until_s = time.monotonic() + EMPTY_S
        while not await self._emptied():
            if time.monotonic() > until_s:
                await self._pausing("go_on")
                raise HTTPException(
                    409, f"the cache was still in use after {EMPTY_S:g} s; try again."
                )
            await asyncio.sleep(POLL_S)
        _, *released = await self._engine.call(f"{SLEEPING}.fall", level)
        return JSONResponse({"status": "asleep", "released_bytes": sum(map(int, released))})

    async def _emptied(self) -> bool:
        await self._end(self._engine.open_ids())
        if not await self._engine.reset_prefix_cache():
            return False
        idle, *_ = await self._engine.call(f"{SLEEPING}.idle")
        return bool(idle == b"1")

    async def _wake_up(self, request: Request) -> JSONResponse:
        """Have the cache, the weights or both back, by `tags`, and go on when nothing sleeps any
        more.
        """
        self._check_sleeps()
        if await self._wake(checked_tags(request.query_params.getlist("tags"))):
            return JSONResponse({"status": "asleep"})
        await self._pausing("go_on")
        return JSONResponse({"status": "awake"})

    async def _wake(self, tags: bytes) -> bool:
        """Wake what tags name; say whether anything sleeps on.

        Where weights cannot be read, nothing has changed.
        """
        await self._engine.call(f"{SLEEPING}.wake", tags)
        state, *_ = await self._engine.call(f"{SLEEPING}.woken", tags)
        return bool(state == b"1")

    async def _is_sleeping(self, request: Request) -> JSONResponse:
        """Tell whether the engine sleeps."""
        self._check_sleeps()
        state, *_ = await self._engine.call(f"{SLEEPING}.state")
        return JSONResponse({"is_sleeping": state == b"1"})

    def _check_sleeps(self) -> None:
        if not self._sleeps:
            raise _off(
                "sleep mode",
                "--enable-sleep-mode; /pause and /resume work without it, and keep the cache",
            )

    async def _start_profile(self, request: Request) -> JSONResponse:
        """Begin to profile the steps of all ranks."""
        self._check_profiles()
        _files(await self._engine.call(f"{PROFILING}.start"))
        return JSONResponse({"status": "started"})

    async def _stop_profile(self, request: Request) -> JSONResponse:
        """End it; tell where each rank has written its trace."""
        self._check_profiles()
        return JSONResponse(
            {"status": "stopped", "files": _files(await self._engine.call(f"{PROFILING}.stop"))}
        )

    def _check_profiles(self) -> None:
        if not self._profiles:
            raise _off("the profiler", "--profiler-config '{\"torch_profiler_dir\": DIR}'")

    async def _abort(self, request: Request) -> JSONResponse:
        """End requests by the ids that their answers show; without ids, all."""
        parsed = await read_request(request, AbortFields, strict=self._strict)
        wanted = set(parsed.fields.request_ids)
        ids = self._engine.open_ids()
        if wanted:
            ids = [each for each in ids if wanted & names_of(each)]
        await self._end(ids)
        return JSONResponse({"status": "aborted", "aborted": len(ids)}, headers=parsed.headers)

    async def _end(self, ids: Sequence[str]) -> None:
        await asyncio.gather(*(self._engine.abort(each) for each in ids))

    async def _reset_prefix_cache(self, request: Request) -> JSONResponse:
        """Forget all cached beginnings of prompts."""
        if not await self._engine.reset_prefix_cache():
            raise HTTPException(
                409,
                "requests are running, and hold blocks of the cache; pause first, or try again.",
            )
        return JSONResponse({"status": "reset"})

    async def _server_info(self, request: Request) -> Response:
        """Tell the configuration in force, secrets left out, the plugins in use, and what they have
        raised.
        """
        refs = self._engine.registry.plan.plugins
        sinks = self._engine.sinks.guarded
        plugins = [ref.name for ref in refs]
        config = _shown(dataclasses.asdict(self._config))
        value = {"version": metadata.version("core"), "config": config, "plugins": plugins}
        value["plugin_health"] = plugin_health(refs, sinks, await self._faults())
        return Response(msgspec.json.encode(value, enc_hook=str), media_type="application/json")

    async def _faults(self) -> list[Faults]:
        """Return what plugins have raised in each process, as far as the engine says so within a
        moment.
        """
        told: dict[int, Faults] = {os.getpid(): faults_of(self._engine.registry)}
        if not hasattr(self._engine, "call"):
            return [*told.values()]
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(ANSWER_S):
                for answer in await self._engine.call("memory.owners"):
                    process = msgspec.json.decode(answer)
                    told.setdefault(process["pid"], process["faults"])
        return [*told.values()]

    async def _call(self, request: Request) -> JSONResponse:
        """Make a call of a feature, one of those that `--operator-calls` names."""
        parsed = await read_request(request, CallFields, strict=self._strict)
        fields = parsed.fields
        if fields.method not in self._calls:
            named = ", ".join(self._calls) or "none"
            raise InvalidRequest(
                "method",
                f"{fields.method[:100]!r} is none of those that --operator-calls names: {named}.",
            )
        if fields.args or fields.kwargs:
            raise InvalidRequest("args", "is not served: a call brings a text; give it as `data`.")
        try:
            async with asyncio.timeout(fields.timeout):
                answers = await self._engine.call(fields.method, fields.data.encode())
        except InvalidRequest as error:
            raise as_typed(error, {"name": "method"}) from None
        return JSONResponse(
            {"results": [each.decode(errors="replace") for each in answers]}, headers=parsed.headers
        )

    async def _refuse(self, request: Request) -> JSONResponse:
        """Say what is missing."""
        missing = next(
            what for path, (_, what) in _MISSING.items() if request.url.path.endswith(path)
        )
        raise HTTPException(
            404, {"message": f"this version has not got {missing}.", "code": "not_served"}
        )


def _files(answers: Sequence[bytes]) -> list[str]:
    """Return the files that ranks say they have written.

    Raises `HTTPException` for what they say was wrong.
    """
    told = [msgspec.json.decode(answer) for answer in answers]
    for each in told:
        if "error" in each:
            raise HTTPException(409, f"{each['error']}.")
    return [each["file"] for each in told if each.get("file")]


def _off(what: str, switch: str) -> HTTPException:
    return HTTPException(
        404, {"message": f"{what} is off; start the server with {switch}.", "code": "not_served"}
    )


def _shown(value: Any, name: str = "") -> Any:
    """Return settings with secrets left out."""
    if isinstance(value, Mapping):
        return {str(key): _shown(item, str(key)) for key, item in value.items()}
    return "***" if value and isinstance(value, (str, list)) and name.endswith(_SECRETS) else value
