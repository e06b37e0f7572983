"""What operators ask a server: does it live, which version is it, what does it count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.api import EngineConfig


class ProbeRoutes:
    """Probes over one engine. `/metrics` shows the first metric sink that has an `expose` method."""

    public_paths = frozenset({"/health", "/ping"})
    """Served without an API key: load balancers have none."""

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/health", self._health, methods=["GET"]),
            Route("/ping", self._health, methods=["GET", "POST"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    async def _health(self, request: Request) -> JSONResponse:
        self._engine.check_health()
        return JSONResponse(self._engine.health())

    async def _version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": metadata.version("core")})

    async def _metrics(self, request: Request) -> Response:
        for guarded in self._engine.sinks.guarded:
            expose = getattr(guarded.sink, "expose", None)
            if expose is not None:
                body, kind = await asyncio.to_thread(expose)
                return Response(body, media_type=None, headers={"content-type": kind})
        raise HTTPException(
            404, "no metric sink shows its numbers here; they are off (--disable-log-stats) or blocked."
        )
