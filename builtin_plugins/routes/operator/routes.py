"""Operator routes of a running engine; 404 without `--enable-operator-routes`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from builtin_plugins.metric_sinks.api import plugin_faults
from builtin_plugins.routes.calls import require_all
from builtin_plugins.routes.common.body import owner_name, read_request
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.plugin_health import Faults, plugin_health
from builtin_plugins.routes.common.request_ids import id_aliases, is_owned
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.operator.pausing import NAME
from builtin_plugins.routes.operator.profiling import NAME as PROFILING
from builtin_plugins.routes.operator.profiling import Settings
from builtin_plugins.routes.operator.sleep_routes import SleepRoutes, switched_off
from core.api import EngineConfig, EngineError, InvalidRequest
from core.api.execution import CallAnswer
from core.api.serving import ServedEngine

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Interval between two checks for running requests, in seconds."""
ANSWER_S: Final = 1.0
"""Timeout for the engine to report plugin faults, in seconds."""
_SECRETS: Final = ("token", "key", "password", "secret")
_MODES: Final = ("abort", "wait", "keep")
_MISSING: Final[Mapping[str, tuple[str, str]]] = {
    "/reset_mm_cache": ("POST", "a reset of processed images: --mm-processor-cache-gb bounds them"),
    "/reset_encoder_cache": (
        "POST",
        "a reset of encoder outputs: --mm-encoder-cache-tokens bounds them",
    ),
}
"""vLLM's routes that are not supported: the method, and the missing part."""


class CallFields(msgspec.Struct, kw_only=True):
    """Body of `/collective_rpc`."""

    method: str
    """Name of the call, as `feature.verb`."""
    data: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class AbortFields(msgspec.Struct, kw_only=True):
    """Body of `/abort_requests`."""

    request_ids: list[str] = []
    """Ids as answers show them; empty: all requests."""


class OperatorRoutes:
    """Operator routes of one engine."""

    switch: Final = "enable_operator_routes"
    queries: Final[Mapping[str, Any]] = {
        "POST /pause": {"mode": {"enum": list(_MODES), "default": _MODES[0]}}
    }

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._config = config
        options = config.options
        self._is_on = bool(options.get(self.switch))
        self._aborts = self._is_on or bool(options.get("tokens_only"))
        self._calls: Sequence[str] = options.get("operator_calls") or ()
        self._strict = bool(options.get("strict_fields"))
        is_on = self._is_on and bool(options.get("enable_sleep_mode"))
        self._sleep = SleepRoutes(engine, self._pausing, self._end, is_on=is_on)
        self._profiles = Settings.of(options.get("profiler_config") or {}) is not None
        if self._is_on and not options.get("api_key"):
            log.warning(
                "every client of the port may pause the server and read its settings; "
                "set an --api-key"
            )

    def routes(self) -> Sequence[Route]:
        """Return the routes; without the switch only those that another option serves."""
        own = [Route("/abort_requests", self._abort, methods=["POST"])] if self._aborts else []
        if self._is_on or self._profiles:
            own.append(Route("/start_profile", self._start_profile, methods=["POST"]))
            own.append(Route("/stop_profile", self._stop_profile, methods=["POST"]))
        if not self._is_on:
            return own
        return [
            *own,
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._resume, methods=["POST"]),
            Route("/is_paused", self._is_paused, methods=["GET"]),
            Route("/reset_prefix_cache", self._reset_prefix_cache, methods=["POST"]),
            Route("/server_info", self._server_info, methods=["GET"]),
            Route("/collective_rpc", self._call, methods=["POST"]),
            *self._sleep.routes(),
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
        """Pause the engine: abort running requests (`mode=abort`), finish them (`wait`), or let
        them resume later (`keep`).
        """
        mode = request.query_params.get("mode", "abort")
        if mode not in _MODES:
            raise InvalidRequest("mode", f"must be one of {', '.join(_MODES)}, not {mode[:100]!r}.")
        if mode == "wait":
            _, running = await self._pausing("drain")
            while running:
                await asyncio.sleep(POLL_S)
                paused, running = await self._pausing("state")
                if not paused:
                    raise HTTPException(
                        409, "the server was resumed before all running requests had ended."
                    )
        await self._pausing("pause")
        if mode == "abort":
            await self._end(self._engine.open_ids())
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> JSONResponse:
        """Resume the engine, and wake it up."""
        if self._sleep.is_on:
            await self._sleep.wake(b"")
        await self._pausing("resume")
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> JSONResponse:
        """Return whether the engine is paused."""
        paused, _ = await self._pausing("state")
        return JSONResponse({"is_paused": paused})

    async def _pausing(self, verb: str) -> tuple[bool, int]:
        """Return whether every engine is paused, and how many requests run."""
        answers = require_all(await self._engine.call(f"{NAME}.{verb}"))
        states = [(answer.scheduler or b"0 0").split() for answer in answers]
        return all(paused == b"1" for paused, _ in states), sum(int(run) for _, run in states)

    async def _start_profile(self, request: Request) -> JSONResponse:
        """Start the profiler of all ranks."""
        self._check_profiles()
        _files(await self._engine.call(f"{PROFILING}.start"))
        return JSONResponse({"status": "started"})

    async def _stop_profile(self, request: Request) -> JSONResponse:
        """Stop the profiler; return the trace files of the ranks."""
        self._check_profiles()
        return JSONResponse(
            {"status": "stopped", "files": _files(await self._engine.call(f"{PROFILING}.stop"))}
        )

    def _check_profiles(self) -> None:
        if not self._profiles:
            raise switched_off("the profiler", "--profiler-config '{\"torch_profiler_dir\": DIR}'")

    async def _abort(self, request: Request) -> JSONResponse:
        """Abort requests by the ids of their answers; without ids, all requests.

        Without the operator switch, only token requests of the same owner.
        """
        parsed = await read_request(request, AbortFields, strict=self._strict)
        aliases = set(parsed.fields.request_ids)
        ids = self._engine.open_ids()
        if not self._is_on:
            owner = owner_name(request)
            ids = [each for each in ids if is_owned(each, owner)]
        if aliases:
            ids = [each for each in ids if aliases & id_aliases(each)]
        await self._end(ids)
        return JSONResponse({"status": "aborted", "aborted": len(ids)}, headers=parsed.headers)

    async def _end(self, ids: Sequence[str]) -> None:
        await asyncio.gather(*(self._engine.abort(each) for each in ids))

    async def _reset_prefix_cache(self, request: Request) -> JSONResponse:
        """Clear the prefix cache."""
        if not await self._engine.reset_prefix_cache():
            raise HTTPException(
                409,
                "requests are running, and hold blocks of the cache; pause first, or try again.",
            )
        return JSONResponse({"status": "reset"})

    async def _server_info(self, request: Request) -> Response:
        """Return the configuration in use without secrets, the loaded plugins, and their faults."""
        refs = self._engine.registry.plan.plugins
        sinks = self._engine.sinks.entries
        plugins = [ref.name for ref in refs]
        config = _without_secrets(dataclasses.asdict(self._config))
        value = {"version": metadata.version("core"), "config": config, "plugins": plugins}
        value["plugin_health"] = plugin_health(refs, sinks, await self._faults())
        return Response(msgspec.json.encode(value, enc_hook=str), media_type="application/json")

    async def _faults(self) -> list[Faults]:
        """Return the faults of plugins in each process; the engine's only if it answers in time."""
        faults: dict[int, Faults] = {os.getpid(): plugin_faults(self._engine.registry)}
        if not hasattr(self._engine, "call"):
            return [*faults.values()]
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(ANSWER_S):
                for engine in await self._engine.call("memory.owners"):
                    for answer in engine.all:
                        process = msgspec.json.decode(answer)
                        faults.setdefault(process["pid"], process["faults"])
        return [*faults.values()]

    async def _call(self, request: Request) -> JSONResponse:
        """Make a call of a feature that `--operator-calls` names."""
        parsed = await read_request(request, CallFields, strict=self._strict)
        fields = parsed.fields
        if fields.method not in self._calls:
            named = ", ".join(self._calls) or "none"
            raise InvalidRequest(
                "method",
                f"{fields.method[:100]!r} is not in --operator-calls ({named}).",
            )
        if fields.args or fields.kwargs:
            raise InvalidRequest("args", "is not served: a call takes one text; send it as `data`.")
        try:
            async with asyncio.timeout(fields.timeout):
                answers = await self._engine.call(fields.method, fields.data.encode())
        except InvalidRequest as error:
            raise with_client_field(error, {"name": "method"}) from None
        results = [each.decode(errors="replace") for answer in answers for each in answer.all]
        body: dict[str, Any] = {"results": results}
        if len(answers) > 1:
            body["engines"] = [_as_json(answer) for answer in answers]
        return JSONResponse(body, headers=parsed.headers)

    async def _refuse(self, request: Request) -> JSONResponse:
        """Refuse a route of vLLM that is not supported."""
        missing = next(
            what for path, (_, what) in _MISSING.items() if request.url.path.endswith(path)
        )
        raise HTTPException(
            404, {"message": f"this version does not have {missing}.", "code": "not_served"}
        )


def _files(answers: Sequence[CallAnswer]) -> list[str]:
    """Return the files that ranks have written.

    Raises `HTTPException` for their errors; it names the engines, and the files of the others.
    """
    names = {answer.engine: f"engine {answer.engine}: " for answer in answers}
    if len(answers) == 1:
        names[answers[0].engine] = ""
    errors = [f"{names[answer.engine]}{answer.error}" for answer in answers if answer.error]
    files: list[str] = []
    for answer in answers:
        for result in map(msgspec.json.decode, answer.all):
            if "error" in result:
                errors.append(f"{names[answer.engine]}{result['error']}")
            elif result.get("file"):
                files.append(result["file"])
    if errors:
        written = f" Other engines have written {', '.join(files)}." if files else ""
        raise HTTPException(409, f"{'; '.join(errors)}.{written}")
    return files


def _as_json(answer: CallAnswer) -> dict[str, Any]:
    """Return the answer of one engine of several, or its error."""
    if answer.error:
        return {"engine": answer.engine, "error": answer.error}
    return {
        "engine": answer.engine,
        "results": [each.decode(errors="replace") for each in answer.all],
    }


def _without_secrets(value: Any, name: str = "") -> Any:
    """Return settings with secrets replaced by asterisks."""
    if isinstance(value, Mapping):
        return {str(key): _without_secrets(item, str(key)) for key, item in value.items()}
    return "***" if value and isinstance(value, (str, list)) and name.endswith(_SECRETS) else value
