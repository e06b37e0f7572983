"""`GET /kv_event_sources`: where a router subscribes to the KV events, and how keys are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.features.kv_events.event_source import NAME
from builtin_plugins.features.kv_events.settings import settings_of
from core.api import EngineConfig
from core.api.serving import ServedEngine


class KvEventRoutes:
    """Route of one server."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._settings = settings_of(config)
        self._num_ranks = config.parallel.data_parallel_size
        if self._settings is not None:
            reading_calls(engine.registry).add(f"{NAME}.chain")

    def routes(self) -> Sequence[Route]:
        """Return the route."""
        return [Route("/kv_event_sources", self._sources, methods=["GET"])]

    async def _sources(self, request: Request) -> JSONResponse:
        """The publisher's settings by data-parallel rank; empty without KV events.

        Those of a rank that answers have `chain`, the facts that block keys depend on.
        """
        if self._settings is None:
            return JSONResponse({})
        found: dict[str, dict[str, Any]] = {
            str(rank): msgspec.to_builtins(self._settings.of_rank(rank))
            for rank in range(self._num_ranks)
        }
        for answer in await self._engine.call(f"{NAME}.chain"):
            if answer.scheduler is not None:
                found[str(answer.engine)]["chain"] = msgspec.json.decode(answer.scheduler)
        return JSONResponse(found)
