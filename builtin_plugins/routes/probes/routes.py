"""What operators and their machines ask a server: does it live, may it get requests, what does it
count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from builtin_plugins.routes.probes.exposed import joined
from core.api import EngineConfig, ServerActivity
from core.contracts.faults import faults_of
from core.contracts.memory import memory_of
from core.contracts.times import times_of

ANSWER_S: Final = 1.0
"""As long a page of metrics waits for the engine; then it shows what was said before."""
HEALTH_S: Final = 0.2
"""Likewise, a probe."""


class ProbeRoutes:
    """Probes over one engine. `/metrics` shows what all metric sinks with an `expose` method have."""

    public_paths = frozenset({"/livez", "/readyz", "/health", "/ping"})
    """Served without an API key: load balancers have none."""
    quiet_paths = public_paths | {"/metrics"}

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
        self._pending: asyncio.Future[list[bytes]] | None = None
        """What the engine was asked and has not answered."""
        self._known: list[bytes] = []
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
        return (
            [*routes, Route("/load", self._load, methods=["GET"])] if self._shows_load else routes
        )

    async def _livez(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _readyz(self, request: Request) -> JSONResponse:
        """May this server get new requests?"""
        health = self._asked(request)
        return _answer(health, good=health["status"] == "ready")

    async def _health(self, request: Request) -> JSONResponse:
        """Does it serve the requests it has?

        One that drains does. What features say of themselves is beside it.
        """
        health = self._asked(request)
        good = health["status"] in ("ready", "draining")
        if good:
            await self._ask(HEALTH_S)
            told = [msgspec.json.decode(answer).get("infos", {}) for answer in self._known]
            health["features"] = {name: labels for infos in told for name, labels in infos.items()}
        return _answer(health, good=good)

    def _asked(self, request: Request) -> dict[str, Any]:
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
        return JSONResponse(
            {"server_load": _activity(request).open_requests - 1}
        )  # this request is one, too

    async def _metrics(self, request: Request) -> Response:
        shown = [
            guarded for guarded in self._engine.sinks.guarded if hasattr(guarded.sink, "expose")
        ]
        if not shown:
            raise HTTPException(
                404,
                "no metric sink shows its numbers here; they are off (--disable-log-stats) or "
                "blocked.",
            )
        health = self._asked(request) | {"memory": await self._memory()}
        body, kind = await asyncio.to_thread(joined, shown, health)
        return Response(body, media_type=None, headers={"content-type": kind})

    async def _memory(self) -> dict[str, Any]:
        """Return who owns the memory, and what plugins have raised and taken, as far as it is known
        within a moment.
        """
        await self._ask(ANSWER_S)
        registry = self._engine.registry
        own = {"owners": memory_of(registry).bytes_now(), "faults": faults_of(registry)}
        return own | {"engine": self._known, "seconds": times_of(registry).so_far()}

    async def _ask(self, wait_s: float) -> None:
        """Ask the engine's processes what they say of themselves; one in a long step answers later."""
        if self._pending is None and hasattr(self._engine, "call"):
            self._pending = asyncio.ensure_future(self._engine.call("memory.owners"))
        asked = self._pending
        if asked is not None:
            done, _ = await asyncio.wait([asked], timeout=wait_s)
            if done:
                self._known = [] if asked.exception() is not None else asked.result()
                if self._pending is asked:  # who asked beside us may have been here before
                    self._pending = None


def _answer(health: dict[str, Any], *, good: bool) -> JSONResponse:
    return JSONResponse(health) if good else JSONResponse(health, 503, {"Retry-After": "1"})


def _activity(request: Request) -> ServerActivity:
    """Return what the server says of itself; another server may say nothing."""
    return request.scope.get("state", {}).get("server") or ServerActivity(open_requests=1)
