"""`GET /kv_event_sources`: where a router subscribes to the KV events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.features.kv_events.settings import settings_of
from core.api import EngineConfig
from core.api.serving import ServedEngine


class KvEventRoutes:
    """Route of one engine."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._settings = settings_of(config)

    def routes(self) -> Sequence[Route]:
        """Return the route."""
        return [Route("/kv_event_sources", self._sources, methods=["GET"])]

    async def _sources(self, request: Request) -> JSONResponse:
        """The publisher's settings by data-parallel rank; empty without KV events."""
        if self._settings is None:
            return JSONResponse({})
        return JSONResponse({"0": msgspec.to_builtins(self._settings)})
