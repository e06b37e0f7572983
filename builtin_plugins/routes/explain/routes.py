"""`GET /explain?request_id=...`, with `--enable-operator-routes`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.routes.explain.history import NAME, RecentRequests, SequenceReport
from core.api import EngineConfig, EngineError, InvalidRequest
from core.api.serving import ServedEngine

PATH: Final = "/explain"
MAX_PLUGINS_NAMED: Final = 5
"""Largest number of plugins in a sentence; `sequences` lists all."""
ANSWER_S: Final = 5.0
"""Timeout of the call to the engine, in seconds; it answers between two steps."""


class ExplainRoutes:
    """Route `/explain` of one engine."""

    switch: Final = "enable_operator_routes"
    queries: Final[Mapping[str, Any]] = {
        f"GET {PATH}": {"request_id": {"type": "string", "minLength": 1}}
    }

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._is_on = bool(config.options.get(self.switch))
        self._num_engines = config.parallel.data_parallel_size
        if self._is_on:
            reading_calls(engine.registry).add(f"{NAME}.request")

    def routes(self) -> Sequence[Route]:
        """Return the route; none without the switch."""
        return [Route(PATH, self._explain, methods=["GET"])] if self._is_on else []

    async def _explain(self, request: Request) -> JSONResponse:
        """Return why a request waits, was preempted or refused, and where its time went."""
        request_id = request.query_params.get("request_id", "")
        if not request_id:
            raise InvalidRequest("request_id", "give the id of a request, as answers show it.")
        sequences, sentences = await self._sequences(request_id)
        names_engines = self._num_engines > 1
        for each in sequences:
            sentences += _sentences(each, f" in engine {each.engine}" if names_engines else "")
        for entry in self._engine.sinks.entries:
            if isinstance(entry.sink, RecentRequests):
                sentences += entry.sink.sentences(request_id)
        if not sentences:
            raise HTTPException(
                404,
                f"request {request_id[:200]!r} is unknown: it has not arrived, or a thousand "
                "others have ended since. Refused requests are known by their X-Request-Id.",
            )
        return JSONResponse(
            {
                "request_id": request_id,
                "lines": sentences,
                "sequences": [msgspec.to_builtins(each) for each in sequences],
            }
        )

    async def _sequences(self, request_id: str) -> tuple[list[SequenceReport], list[str]]:
        """Return the scheduler's reports, or a sentence if it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answers = await self._engine.call(f"{NAME}.request", request_id.encode())
        except TimeoutError:
            reason = self._engine.health()["reason"] or "it is in a long step"
            return [], [f"the engine has not answered for {ANSWER_S:g} s: {reason}"]
        except EngineError as error:
            return [], [f"the engine does not answer: {error}"]
        reports = []
        for answer in answers:
            found = msgspec.json.decode(answer.scheduler or b"[]", type=list[SequenceReport])
            for report in found:
                report.engine = answer.engine
            reports += found
        errors = [f"engine {each.engine} does not answer: {each.error}" for each in answers]
        return reports, [text for text, each in zip(errors, answers, strict=True) if each.error]


def _sentences(report: SequenceReport, where: str) -> Iterator[str]:
    name = f"{report.request_id}{where}"
    if report.moved_from:
        dead = ", ".join(str(rank) for rank in report.moved_from)
        yield f"{name}: moved from engine {dead}, which died"
    if report.resumed_tokens:
        yield f"{name}: {report.resumed_tokens} tokens were generated before the engine died"
    if report.state != "ended":
        yield f"{name} is {report.state}: {report.why}"
    times = f"{report.queued_s:.3f} s in the queue, {report.computed_s:.3f} s computed"
    if report.preemptions:
        times += (
            f", {report.displaced_s:.3f} s preempted: {report.preemptions} times, because the KV "
            "cache had no free blocks (--kv-cache-memory-bytes, --max-num-seqs)"
        )
    yield f"{name}: {times}"
    slowest = sorted(report.plugin_s.items(), key=lambda each: -each[1])[:MAX_PLUGINS_NAMED]
    if slowest:
        listed = ", ".join(f"{plugin} {seconds:.3f} s" for plugin, seconds in slowest)
        yield (
            f"{name}: meanwhile calls of plugins took, in the engine's process and for all "
            f"requests: {listed}"
        )
