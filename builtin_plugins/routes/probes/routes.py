"""Health probes, version, load and metrics of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from builtin_plugins.clients.api import local_ranks, reading_calls
from builtin_plugins.metric_sinks.api import (
    memory_owners,
    merge_pages,
    plugin_faults,
    plugin_seconds,
)
from builtin_plugins.servers.api import ServerActivity
from core.api import EngineConfig
from core.api.execution import CallAnswer
from core.api.serving import ServedEngine

ANSWER_S: Final = 1.0
"""Timeout for the engine to answer a metrics request, in seconds; then its last answer is used."""
MEMORY_OWNERS: Final = "memory.owners"
"""Call that returns memory and telemetry of the engine's processes."""
HEALTH_S: Final = 0.2
"""Timeout for the engine to answer a probe, in seconds."""


class ProbeRoutes:
    """Probe routes of one engine. `/metrics` has the page of all sinks with an `expose` method."""

    public_paths = frozenset({"/livez", "/readyz", "/health", "/ping"})
    """Paths that need no API key: load balancers have none."""
    quiet_paths = public_paths | {"/metrics"}

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._ranks = local_ranks(config)
        self._pending: asyncio.Future[list[CallAnswer]] | None = None
        """Call that the engine has not answered yet."""
        self._known: list[bytes] = []
        """Last answers of the engine's processes."""
        if hasattr(engine, "call"):
            reading_calls(engine.registry).add(MEMORY_OWNERS)
        self._shows_load = bool(config.options.get("enable_server_load_tracking"))

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        routes = [
            Route("/livez", self._livez, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/ping", self._health, methods=["GET", "POST"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        if self._shows_load:
            routes.append(Route("/load", self._load, methods=["GET"]))
        return routes

    async def _livez(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _readyz(self, request: Request) -> JSONResponse:
        """Return 200 if the server accepts new requests."""
        health = self._engine_health(request)
        return _answer(health, good=health["status"] == "ready")

    async def _health(self, request: Request) -> JSONResponse:
        """Return 200 if the server serves its open requests, also while draining.

        The body includes the info of features, with several engines also of each.
        """
        health = self._engine_health(request)
        good = health["status"] in ("ready", "draining")
        if good:
            await self._update(HEALTH_S)
            health["features"] = {}
            for answer in self._known:
                _add_features(health, msgspec.json.decode(answer), self._ranks)
        return _answer(health, good=good)

    def _engine_health(self, request: Request) -> dict[str, Any]:
        health: dict[str, Any] = dict(self._engine.health())
        if health["status"] == "ready" and _activity(request).draining:
            health |= {
                "status": "draining",
                "reason": "the server ends when its open requests have ended",
            }
        return health

    async def _version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": metadata.version("core")})

    async def _load(self, request: Request) -> JSONResponse:
        others = _activity(request).open_requests - 1  # without this request
        return JSONResponse({"server_load": others})

    async def _metrics(self, request: Request) -> Response:
        sinks = [entry for entry in self._engine.sinks.entries if hasattr(entry.sink, "expose")]
        if not sinks:
            raise HTTPException(
                404,
                "no metric sink has a page here; metrics are off (--disable-log-stats) or blocked.",
            )
        health = self._engine_health(request) | {"memory": await self._memory()}
        body, kind = await asyncio.to_thread(merge_pages, sinks, health)
        return Response(body, media_type=None, headers={"content-type": kind})

    async def _memory(self) -> dict[str, Any]:
        """Return memory by owner, and faults and time of plugins; the engine's if it answers."""
        await self._update(ANSWER_S)
        registry = self._engine.registry
        own = {"owners": memory_owners(registry).usage(), "faults": plugin_faults(registry)}
        return own | {"engine": self._known, "seconds": plugin_seconds(registry)}

    async def _update(self, wait_s: float) -> None:
        """Update the last answers of the engine's processes; a long step delays the answer."""
        if self._pending is None and hasattr(self._engine, "call"):
            self._pending = asyncio.ensure_future(self._engine.call(MEMORY_OWNERS))
        pending = self._pending
        if pending is not None:
            done, _ = await asyncio.wait([pending], timeout=wait_s)
            if done:
                answers = [] if pending.exception() is not None else pending.result()
                self._known = [each for answer in answers for each in answer.all]
                if self._pending is pending:  # a concurrent request may have replaced it
                    self._pending = None


def _add_features(health: dict[str, Any], answer: Mapping[str, Any], ranks: Sequence[int]) -> None:
    """Add what features of an engine's process report: to the server's, and to the engine's.

    `ranks` are those of the server's engines, in their order.
    """
    infos = answer.get("infos", {})
    health["features"] |= infos
    for rank, engine in zip(ranks, health.get("engines", ()), strict=False):
        if infos and rank == answer["engine"]:
            engine["features"] = infos


def _answer(health: dict[str, Any], *, good: bool) -> JSONResponse:
    return JSONResponse(health) if good else JSONResponse(health, 503, {"Retry-After": "1"})


def _activity(request: Request) -> ServerActivity:
    """Return the server's activity; servers of other plugins may not provide it."""
    return request.scope.get("state", {}).get("server") or ServerActivity(open_requests=1)
