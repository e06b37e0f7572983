"""`/playground`, the files of the page, and `/playground/state`, the data of the page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.metric_sinks.api import plugin_faults
from builtin_plugins.routes.common.media_parts import IMAGE, served_modalities
from builtin_plugins.routes.common.plugin_health import Faults, plugin_health
from builtin_plugins.routes.playground.counters import NAME, Totals
from core.api import EngineConfig, EngineError
from core.api.execution import CallAnswer
from core.api.serving import ServedEngine

PAGE: Final = Path(__file__).parent / "page"
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/playground": ("index.html", "text/html; charset=utf-8"),
    "/playground/page.css": ("page.css", "text/css; charset=utf-8"),
    "/playground/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/playground/engine.js": ("engine.js", "text/javascript; charset=utf-8"),
    "/playground/images.js": ("images.js", "text/javascript; charset=utf-8"),
    "/playground/texts.js": ("texts.js", "text/javascript; charset=utf-8"),
    "/playground/icon.svg": ("icon.svg", "image/svg+xml"),
    "/playground/star.png": ("star.png", "image/png"),
}
"""By path: the file, and its content type."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers that let the page load and run only its own files, whatever a model writes."""
ANSWER_S: Final = 0.5
"""Timeout for the engine to count blocks, in seconds; then the last counts are used."""
COUNT_AGAIN_S: Final = 0.9
"""Shortest interval between two counts, in seconds; the engine counts between two steps."""


class PlaygroundRoutes:
    """Routes of the page. Its files need no API key, because browsers send none; its data does."""

    public_paths = frozenset(FILES)
    quiet_paths = frozenset({"/playground/state"})
    one_process = "its counters are those of one process"

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._files = {path: (PAGE / name).read_bytes() for path, (name, _) in FILES.items()}
        self._counting: asyncio.Future[list[CallAnswer]] | None = None
        self._counted_s = float("-inf")
        self._blocks: dict[str, int] | None = None
        self._blocks_by_engine: dict[int, dict[str, int]] = {}
        self._faults: list[Faults] = []
        """Faults of plugins in the engine's process."""
        reading_calls(engine.registry).add(f"{NAME}.blocks")

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        files = [
            Route(path, self._file, methods=["GET"], include_in_schema=False) for path in FILES
        ]
        return [*files, Route("/playground/state", self._state, methods=["GET"])]

    async def _file(self, request: Request) -> Response:
        path = next(path for path in FILES if request.url.path.endswith(path))
        return Response(self._files[path], headers={**HEADERS, "Content-Type": FILES[path][1]})

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
        return JSONResponse(state, headers={"Cache-Control": "no-store"})

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
