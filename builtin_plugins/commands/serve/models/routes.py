"""Routes of a server with several models: its own pages; others go to the models' processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from builtin_plugins.commands.route.proxy import Address, Lost
from builtin_plugins.commands.serve.models.adapters import Adapters
from builtin_plugins.commands.serve.models.forwarding import Call, Forwarded
from builtin_plugins.commands.serve.models.metrics import CONTENT_TYPE, merge_pages, pool_page
from builtin_plugins.commands.serve.models.names import ModelNames
from builtin_plugins.commands.serve.models.pool import Model, ModelPool, ModelUnavailable
from builtin_plugins.servers.api import ServerActivity
from core.api import EngineConfig

PROBE_S: Final = 0.5
"""Timeout of the process of a model to answer for a page of all models, in seconds."""
CALL_S: Final = 600.0
"""Timeout of a call to an engine, in seconds."""
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
ENGINE_CALLS: Final = (
    *("abort_requests", "collective_rpc", "is_paused", "is_sleeping", "pause"),
    *("release_kv_cache_memory", "reset_encoder_cache", "reset_mm_cache", "reset_prefix_cache"),
    *("resume", "server_info", "sleep", "start_profile", "stop_profile", "wake_up"),
)
"""Paths of calls to an engine: without a model they go to all loaded ones."""


class PoolRoutes:
    """Pages of the pool and calls to engines."""

    public_paths = frozenset({"/livez", "/readyz", "/health", "/ping"})
    quiet_paths = public_paths | {"/metrics"}

    def __init__(self, pool: ModelPool, names: ModelNames, config: EngineConfig) -> None:
        self._pool = pool
        self._names = names
        self._created = int(time.time())
        options = config.options
        self._shows_load = bool(options.get("enable_server_load_tracking"))
        self._shows_metrics = not config.observability.disable_log_stats
        self._is_operated = bool(options.get("enable_operator_routes"))
        self._prefix = str(options.get("metrics_prefix", "engine_"))

    async def started(self) -> None:
        """Start to watch the models."""
        await self._pool.started()

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        pages: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/health": self._health,
            "/ping": self._health,
            "/version": self._version,
            "/v1/models": self._list,
            "/v1/models/{model:path}": self._one,
        }
        if self._shows_metrics:
            pages["/metrics"] = self._metrics
        if self._shows_load:
            pages["/load"] = self._load
        routes = [Route(path, page, methods=["GET"]) for path, page in pages.items()]
        routes += [Route(f"/{name}", self._call, methods=["GET", "POST"]) for name in ENGINE_CALLS]
        if self._is_operated:
            routes.append(Route("/models/load", self._load_model, methods=["POST"]))
            routes.append(Route("/models/unload", self._unload_model, methods=["POST"]))
        return routes

    # --- probes

    async def _livez(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _readyz(self, request: Request) -> JSONResponse:
        """Return 200 if the server accepts new requests, for models that are loaded or not."""
        if _activity(request).draining:
            return JSONResponse({"status": "draining"}, 503, {"Retry-After": "1"})
        return JSONResponse({"status": "ready"})

    async def _health(self, request: Request) -> JSONResponse:
        """Return the states of all models, or with `?model=` of one: 503 if that cannot serve."""
        name = request.query_params.get("model")
        models = self._pool.models if name is None else [await self._names.find(name)]
        states = await asyncio.gather(*(self._state(model) for model in models))
        if name is None:
            status = "draining" if _activity(request).draining else "ready"
            by_name = {model.name: each for model, each in zip(models, states, strict=True)}
            return JSONResponse({"status": status, "models": by_name})
        (state,) = states
        engine = state.get("engine") or {"status": "ready"}
        is_good = state["value"] != "failed" and engine["status"] in ("ready", "draining")
        return JSONResponse(state, 200 if is_good else 503, {} if is_good else {"Retry-After": "1"})

    async def _state(self, model: Model) -> dict[str, Any]:
        state = model.to_json()
        if model.state == "loaded":
            found = await _fetch(model, b"/health")
            state["engine"] = _decoded(found[1]) if found else {"status": "stalled"}
        return state

    async def _version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": metadata.version("core")})

    async def _load(self, request: Request) -> JSONResponse:
        by_model = {model.name: model.num_open for model in self._pool.models}
        others = _activity(request).open_requests - 1  # without this request
        return JSONResponse({"server_load": others, "models": by_model})

    async def _metrics(self, request: Request) -> PlainTextResponse:
        loaded = self._loaded()
        found = await asyncio.gather(*(_fetch(model, b"/metrics") for model in loaded))
        pages = {
            model.name: each[1].decode()
            for model, each in zip(loaded, found, strict=True)
            if each is not None and each[0] == 200
        }
        page = pool_page(self._pool.models, self._prefix) + merge_pages(pages)
        return PlainTextResponse(page, headers={"content-type": CONTENT_TYPE})

    # --- models

    async def _list(self, request: Request) -> JSONResponse:
        """Return all names that requests may have, with the states of their models."""
        cards = [
            card
            for each in await asyncio.gather(*map(self._cards, self._pool.models))
            for card in each
        ]
        ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}
        return JSONResponse({"object": "list", "data": cards, **ends})

    async def _one(self, request: Request) -> JSONResponse:
        name = request.path_params["model"]
        model = await self._names.find(name)
        cards = await self._cards(model)
        card = next((each for each in cards if each["id"] == name), {**cards[0], "id": name})
        return JSONResponse(card)

    async def _cards(self, model: Model) -> list[dict[str, Any]]:
        """Return the names of a model: from its process, or from its settings."""
        found = await _fetch(model, b"/v1/models") if model.state == "loaded" else None
        listed = _decoded(found[1]).get("data") if found else None
        cards = listed or [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "engine",
                "root": model.settings.model,
                "parent": None,
                "type": "model",
                "display_name": name,
            }
            for name in [*model.settings.names, *model.settings.adapters]
        ]
        return [{**card, "status": model.to_json()} for card in cards]

    async def _load_model(self, request: Request) -> JSONResponse:
        """Load the named model ahead of its first request."""
        model = await self._names.find((await Call.read(request)).named)
        async with used(self._pool, model):
            pass
        return JSONResponse({"model": model.name, "status": model.to_json()})

    async def _unload_model(self, request: Request) -> JSONResponse:
        """Unload the named model."""
        model = await self._names.find((await Call.read(request)).named)
        if not self._pool.unload(model):
            message = f"the model {model.name!r} has open requests; unload it when they have ended."
            raise HTTPException(409, {"message": message, "param": "model", "code": "in_use"})
        return JSONResponse({"model": model.name, "status": model.to_json()})

    # --- calls to engines

    async def _call(self, request: Request) -> ASGIApp:
        """Call the engine of the named model, or those of all loaded ones; say which did it."""
        call = await Call.read(request)
        if call.named is not None:
            model = await self._names.find(call.named)
            if model.state != "loaded":
                message = f"the model {model.name!r} is not loaded ({model.state})."
                raise HTTPException(409, {"message": message, "param": "model", "code": "unloaded"})
            return Forwarded(call, [partial(visited, self._pool, model)])
        loaded = self._loaded()
        if not loaded:
            message = "no model is loaded, so there is no engine to call."
            raise HTTPException(409, {"message": message, "code": "unloaded"})
        answers = await asyncio.gather(*(self._answer(model, call) for model in loaded))
        if all(status == 404 for status, _ in answers):
            return Forwarded(call, [partial(visited, self._pool, loaded[0])])
        by_name = {
            model.name: {"status": status, "answer": answer}
            for model, (status, answer) in zip(loaded, answers, strict=True)
        }
        return JSONResponse({"models": by_name}, max(status for status, _ in answers))

    async def _answer(self, model: Model, call: Call) -> tuple[int, Any]:
        try:
            async with visited(self._pool, model) as address, call.to(address, CALL_S) as answer:
                return answer.status, _decoded(await answer.whole())
        except Lost as error:
            return 503, {"error": {"message": str(error), "code": "engine_dead"}}

    def _loaded(self) -> list[Model]:
        return [model for model in self._pool.models if model.state == "loaded"]


class ForwardingRoutes:
    """Forwards requests of one API to the models that they name; errors have that API's form."""

    def __init__(
        self,
        pool: ModelPool,
        names: ModelNames,
        adapters: Adapters,
        paths: Iterable[str],
        form: Callable[[int, Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        self._pool = pool
        self._names = names
        self._adapters = adapters
        self._paths = list(paths)
        if form is not None:
            self.refusal = form

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route(path, self._forward, methods=METHODS, include_in_schema=False)
            for path in self._paths
        ]

    async def _forward(self, request: Request) -> ASGIApp:
        call = await Call.read(request)
        path = call.path.decode("latin-1")
        if call.named is None and (adapter := self._adapters.model_of(path, call.body)):
            call.named = adapter
        if call.named is None and len(self._pool.models) > 1 and not call.body:
            return self._first_that_knows(call)
        model = await self._names.find(call.named)
        after = self._adapters.noted(path, call, model)
        return Forwarded(call, [partial(used, self._pool, model)], after)

    def _first_that_knows(self, call: Call) -> ASGIApp:
        """Forward a request without a model, such as one by id, to the loaded model that knows."""
        loaded = [model for model in self._pool.models if model.state == "loaded"]
        if not loaded:
            message = (
                f"{call.path.decode('latin-1')[:200]} names no model, and none is loaded. Name "
                "one: ?model=NAME."
            )
            raise HTTPException(404, {"message": message, "param": "model", "code": "not_found"})
        return Forwarded(call, [partial(visited, self._pool, model) for model in loaded])


@asynccontextmanager
async def used(pool: ModelPool, model: Model) -> AsyncIterator[Address]:
    """Yield the address of a loaded model. Raises a 503 if it cannot be loaded."""
    try:
        async with pool.use(model) as address:
            yield address
    except ModelUnavailable as error:
        detail = {"message": str(error), "param": "model", "code": "model_unavailable"}
        raise HTTPException(
            503, detail, headers={"Retry-After": str(error.retry_after_s)}
        ) from error


@asynccontextmanager
async def visited(pool: ModelPool, model: Model) -> AsyncIterator[Address]:
    """Yield the address of a loaded model for a call that is no use of it.

    Raises a 503 if it has been unloaded.
    """
    if model.state != "loaded":
        detail = {"message": f"the model {model.name!r} is being unloaded; send the request again."}
        raise HTTPException(503, detail, headers={"Retry-After": "1"})
    with pool.visit(model) as address:
        yield address


async def _fetch(model: Model, target: bytes) -> tuple[int, bytes] | None:
    """Return the status and body of a page of a loaded model; None if it does not answer."""
    if model.server is None:
        return None
    try:
        async with (
            asyncio.timeout(PROBE_S),
            model.server.get(target, PROBE_S) as answer,
        ):
            return answer.status, await answer.whole()
    except (Lost, TimeoutError):
        return None


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode(errors="replace")


def _activity(request: Request) -> ServerActivity:
    return request.scope.get("state", {}).get("server") or ServerActivity(open_requests=1)
