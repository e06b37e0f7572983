"""`GET /explain?request_id=...`, behind `--enable-operator-routes`: all that is known of one
request, as sentences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.routes.explain.ended import Ended
from builtin_plugins.routes.explain.histories import NAME, Told
from core.api import EngineConfig, EngineError, InvalidRequest

PATH: Final = "/explain"
MOST_PLUGINS: Final = 5
"""Named in a sentence; `sequences` have all."""
ANSWER_S: Final = 5.0
"""How long the engine is waited for: between two steps it answers at once."""


class ExplainRoutes:
    """The route over one engine."""

    switch: Final = "enable_operator_routes"
    queries: Final[Mapping[str, Any]] = {
        f"GET {PATH}": {"request_id": {"type": "string", "minLength": 1}}
    }

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        self._engine = engine
        self._on = bool(config.options.get(self.switch))

    def routes(self) -> Sequence[Route]:
        """Return the route, or none."""
        return [Route(PATH, self._explain, methods=["GET"])] if self._on else []

    async def _explain(self, request: Request) -> JSONResponse:
        """Tell why a request waits, was preempted or refused, and where its time went."""
        wanted = request.query_params.get("request_id", "")
        if not wanted:
            raise InvalidRequest("request_id", "give the id of a request, as answers show it.")
        sequences, told = await self._sequences(wanted)
        told += [sentence for each in sequences for sentence in _sentences(each)]
        sinks = [guarded.sink for guarded in self._engine.sinks.guarded]
        told += [
            sentence for sink in sinks if isinstance(sink, Ended) for sentence in sink.told(wanted)
        ]
        if not told:
            raise HTTPException(
                404,
                f"nothing is known of {wanted[:200]!r}: it has not come, or a thousand others have "
                "ended since. What was "
                "refused is known by the X-Request-Id that it came with.",
            )
        return JSONResponse(
            {
                "request_id": wanted,
                "told": told,
                "sequences": [msgspec.to_builtins(each) for each in sequences],
            }
        )

    async def _sequences(self, wanted: str) -> tuple[list[Told], list[str]]:
        """Return what the scheduler knows, and what to say where it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer, *_ = await self._engine.call(f"{NAME}.request", wanted.encode())
        except TimeoutError:
            return [], [
                f"the engine has not answered for {ANSWER_S:g} s: it is in a long step, or starts "
                "again"
            ]
        except EngineError as error:
            return [], [f"the engine does not answer: {error}"]
        return msgspec.json.decode(answer, type=list[Told]), []


def _sentences(told: Told) -> Iterator[str]:
    name = told.request_id
    if told.state != "ended":
        yield f"{name} is {told.state}: {told.why}"
    times = f"{told.queued_s:.3f} s in the queue, {told.computed_s:.3f} s computed"
    if told.preemptions:
        times += (
            f", {told.displaced_s:.3f} s without a place: it was preempted {told.preemptions} "
            "times, for want of blocks in "
            "the KV cache (--kv-cache-memory-bytes, --max-num-seqs)"
        )
    yield f"{name}: {times}"
    most = sorted(told.plugin_s.items(), key=lambda each: -each[1])[:MOST_PLUGINS]
    if most:
        listed = ", ".join(f"{plugin} {seconds:.3f} s" for plugin, seconds in most)
        yield f"{name}: meanwhile calls of plugins took, in the engine's process and for all requests: {listed}"
