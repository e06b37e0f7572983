"""What operators and their machines ask a server: does it live, may it get requests, what does it count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.api import EngineConfig, ServerActivity


class ProbeRoutes:
    """Probes over one engine. `/metrics` shows the first metric sink that has an `expose` method."""

    public_paths = frozenset({"/livez", "/readyz", "/health", "/ping"})
    """Served without an API key: load balancers have none."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
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
        return [*routes, Route("/load", self._load, methods=["GET"])] if self._shows_load else routes

    async def _livez(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _readyz(self, request: Request) -> JSONResponse:
        """May this server get new requests?"""
        health = self._asked(request)
        return _answer(health, good=health["status"] == "ready")

    async def _health(self, request: Request) -> JSONResponse:
        """Does it serve the requests it has? One that drains does."""
        health = self._asked(request)
        return _answer(health, good=health["status"] in ("ready", "draining"))

    def _asked(self, request: Request) -> dict[str, Any]:
        health: dict[str, Any] = dict(self._engine.health())
        if health["status"] == "ready" and _activity(request).draining:
            health |= {"status": "draining", "reason": "the server ends when its open requests have ended"}
        return health

    async def _version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": metadata.version("core")})

    async def _load(self, request: Request) -> JSONResponse:
        return JSONResponse({"server_load": _activity(request).open_requests - 1})  # this request is one, too

    async def _metrics(self, request: Request) -> Response:
        for guarded in self._engine.sinks.guarded:
            expose = getattr(guarded.sink, "expose", None)
            if expose is not None:
                body, kind = await asyncio.to_thread(expose, self._asked(request))
                return Response(body, media_type=None, headers={"content-type": kind})
        raise HTTPException(
            404, "no metric sink shows its numbers here; they are off (--disable-log-stats) or blocked."
        )


def _answer(health: dict[str, Any], *, good: bool) -> JSONResponse:
    return JSONResponse(health) if good else JSONResponse(health, 503, {"Retry-After": "1"})


def _activity(request: Request) -> ServerActivity:
    """Return what the server says of itself; another server may say nothing."""
    return request.scope.get("state", {}).get("server") or ServerActivity(open_requests=1)
