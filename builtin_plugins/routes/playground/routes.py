"""`/playground` and the files of the page, and its data: `/playground/state`, `.../request`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.metric_sinks.api import plugin_faults
from builtin_plugins.routes.common.media_parts import IMAGE, served_modalities
from builtin_plugins.routes.common.plugin_health import Faults, plugin_health
from builtin_plugins.routes.playground.counters import Totals
from builtin_plugins.routes.playground.files import PageFile, page_files
from builtin_plugins.routes.playground.offer import NAME, is_offered
from core.api import EngineConfig, EngineError, InvalidRequest
from core.api.execution import CallAnswer
from core.api.serving import ServedEngine

ANSWER_S: Final = 0.5
"""Timeout for the engine to count blocks, in seconds; then the last counts are used."""
COUNT_AGAIN_S: Final = 0.9
"""Shortest interval between two counts, in seconds; the engine counts between two steps."""
NO_STORE: Final[Mapping[str, str]] = {"Cache-Control": "no-store"}
REQUEST: Final = "/playground/request"


class PlaygroundRoutes:
    """Routes of the page. Its files need no API key, because browsers send none; its data does."""

    one_process = "its counters are those of one process"
    queries: Final[Mapping[str, Any]] = {
        f"GET {REQUEST}": {"id": {"type": "string", "minLength": 1}}
    }

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._files = page_files() if is_offered(config, engine.registry) else {}
        self.page = "/playground" if self._files else ""
        self.public_paths = frozenset({*self._files, "/"} if self._files else ())
        self.quiet_paths = {*self._files, "/playground/state", REQUEST} - {"/playground"}
        self._explains = bool(config.options.get("enable_operator_routes"))
        self._counting: asyncio.Future[list[CallAnswer]] | None = None
        self._counted_s = float("-inf")
        self._blocks: dict[str, int] | None = None
        self._blocks_by_engine: dict[int, dict[str, int]] = {}
        self._block_size: int | None = None
        """Tokens of a KV block, once the engine has answered."""
        self._faults: list[Faults] = []
        """Faults of plugins in the engine's process."""
        if self._files:
            reading_calls(engine.registry).add(f"{NAME}.blocks")

    def routes(self) -> Sequence[Route]:
        """Return the routes; none if the page is not offered."""
        if not self._files:
            return []
        routes = [
            Route(path, partial(self._file, file), methods=["GET"], include_in_schema=False)
            for path, file in self._files.items()
        ]
        routes.append(Route("/", self._root, methods=["GET"], include_in_schema=False))
        routes.append(Route("/playground/state", self._state, methods=["GET"]))
        routes.append(Route(REQUEST, self._request, methods=["GET"]))
        return routes

    async def _file(self, file: PageFile, request: Request) -> Response:
        return file.answer(request)

    async def _root(self, request: Request) -> Response:
        return RedirectResponse("playground")

    async def _request(self, request: Request) -> JSONResponse:
        """Return sizes and times of an answer that has ended, by its id."""
        answer_id = request.query_params.get("id", "")
        if not answer_id:
            raise InvalidRequest("id", "give the id of an answer of /v1/chat/completions.")
        found = None if self._totals is None else self._totals.answer(answer_id)
        if found is None:
            raise HTTPException(404, f"answer {answer_id[:200]!r} is unknown, or has not ended.")
        await self._block_counts()
        more = {"block_size": self._block_size, "explains": self._explains}
        return JSONResponse({**found, **more}, headers=NO_STORE)

    async def _state(self, request: Request) -> JSONResponse:
        """Return requests, KV blocks, totals of steps and tokens, and the health of plugins."""
        engine = self._engine
        health = engine.health()
        state = {
            "version": metadata.version("core"),
            "model": engine.served_names[0],
            "max_model_len": engine.max_model_len,
            "takes_images": IMAGE in served_modalities(engine),
            "defaults": {
                name: engine.sampling_defaults.get(name)
                for name in ("temperature", "top_p", "max_tokens")
            },
            "time_s": time.monotonic(),
            "health": {
                name: health[name] for name in ("status", "reason", "heartbeat_age_s", "restarts")
            },
            "requests": {name: health[name] for name in ("running", "waiting")},
            "blocks": await self._block_counts(),
            "totals": None if self._totals is None else self._totals.as_json(),
        }
        state["engines"] = self._engines(health.get("engines", ()))
        faults = [plugin_faults(engine.registry), *self._faults]
        state["plugins"] = plugin_health(engine.registry.plan.plugins, engine.sinks.entries, faults)
        return JSONResponse(state, headers=NO_STORE)

    @property
    def _totals(self) -> Totals | None:
        sinks = (entry.sink for entry in self._engine.sinks.entries if entry.name == NAME)
        totals: Totals | None = next(sinks, None)
        return totals

    def _engines(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the state, requests and blocks of each engine; empty with one."""
        return [
            {
                "rank": rank,
                **state,
                **({} if self._totals is None else self._totals.of_engine(rank)),
                "blocks": self._blocks_by_engine.get(rank),
            }
            for rank, state in enumerate(states)
        ]

    def _read(self, answers: Sequence[CallAnswer]) -> None:
        """Store the blocks of all engines together, and the faults of each."""
        states = {
            each.engine: msgspec.json.decode(each.scheduler) for each in answers if each.scheduler
        }
        self._faults = [state["faults"] for state in states.values()]
        self._blocks_by_engine = {rank: state["blocks"] for rank, state in states.items()}
        blocks: Counter[str] = Counter()
        for counts in self._blocks_by_engine.values():
            blocks.update(counts)
        self._blocks = dict(blocks)
        self._block_size = next((state.get("block_size") for state in states.values()), None)

    async def _block_counts(self) -> dict[str, int] | None:
        """Return the number of used, cached and free blocks, as of the last count."""
        now_s = time.monotonic()
        if self._counting is None and now_s - self._counted_s >= COUNT_AGAIN_S:
            self._counted_s = now_s
            self._counting = asyncio.ensure_future(self._engine.call(f"{NAME}.blocks"))
        if self._counting is not None:
            done, _ = await asyncio.wait([self._counting], timeout=ANSWER_S)
            if done and self._counting is not None:
                counting = self._counting
                self._counting = None
                try:
                    self._read(counting.result())
                except EngineError:  # the engine has died; the state reports it
                    self._blocks = None
        return self._blocks
