"""Operator routes of sleep mode: what frees memory, `/wake_up` and `/is_sleeping`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from builtin_plugins.routes.calls import require_all
from builtin_plugins.routes.operator.sleep import EMPTY_S, checked_level, checked_tags
from builtin_plugins.routes.operator.sleep import NAME as SLEEPING
from core.api.serving import ServedEngine

POLL_S: Final = 0.05
"""Interval between two checks for used blocks, in seconds."""


class SleepRoutes:
    """The routes of one engine; they answer 404 without `--enable-sleep-mode`."""

    def __init__(
        self,
        engine: ServedEngine,
        pausing: Callable[[str], Awaitable[Any]],
        end: Callable[[Sequence[str]], Awaitable[None]],
        *,
        is_on: bool,
    ) -> None:
        """`pausing` pauses or resumes the engine; `end` aborts requests."""
        self._engine = engine
        self._pausing = pausing
        self._end = end
        self.is_on = is_on

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/sleep", self._sleep, methods=["POST"]),
            Route("/release_kv_cache_memory", self._release_kv_cache, methods=["POST"]),
            Route("/wake_up", self._wake_up, methods=["POST"]),
            Route("/is_sleeping", self._is_sleeping, methods=["GET"]),
        ]

    async def _sleep(self, request: Request) -> JSONResponse:
        """Abort requests, clear the prefix cache, and release the memory of the KV cache; at level
        2 of the weights too.
        """
        self._check()
        level = checked_level(request.query_params.get("level", "1"))
        return JSONResponse(
            {"status": "asleep", "released_bytes": await self._release("sleep", level)}
        )

    async def _release_kv_cache(self, request: Request) -> JSONResponse:
        """Abort requests, clear the prefix cache, and release the memory of the KV cache alone;
        `/wake_up` restores it.
        """
        self._check()
        if await self._sleeps("state"):
            raise HTTPException(409, "the engine sleeps already; POST /wake_up first.")
        return JSONResponse(
            {"status": "released", "released_bytes": await self._release("release")}
        )

    async def _release(self, verb: str, data: bytes = b"") -> int:
        """Pause and empty the engine, and release memory; return the number of bytes."""
        await self._pausing("pause")
        until_s = time.monotonic() + EMPTY_S
        while not await self._emptied():
            if time.monotonic() > until_s:
                await self._pausing("resume")
                raise HTTPException(
                    409, f"the cache was still in use after {EMPTY_S:g} s; try again."
                )
            await asyncio.sleep(POLL_S)
        answers = require_all(await self._engine.call(f"{SLEEPING}.{verb}", data))
        return sum(int(released) for answer in answers for released in answer.ranks)

    async def _emptied(self) -> bool:
        await self._end(self._engine.open_ids())
        if not await self._engine.reset_prefix_cache():
            return False
        answers = require_all(await self._engine.call(f"{SLEEPING}.idle"))
        return all(answer.scheduler == b"1" for answer in answers)

    async def _wake_up(self, request: Request) -> JSONResponse:
        """Restore cache, weights or both, by `tags`; resume the engine once both are restored."""
        self._check()
        if await self.wake(checked_tags(request.query_params.getlist("tags"))):
            return JSONResponse({"status": "asleep"})
        await self._pausing("resume")
        return JSONResponse({"status": "awake"})

    async def wake(self, tags: bytes) -> bool:
        """Restore what the tags name; return whether anything still sleeps.

        Nothing changes if the weights cannot be reloaded.
        """
        return await self._sleeps("wake", tags)

    async def _is_sleeping(self, request: Request) -> JSONResponse:
        """Return whether the engine sleeps."""
        self._check()
        return JSONResponse({"is_sleeping": await self._sleeps("state")})

    async def _sleeps(self, verb: str, data: bytes = b"") -> bool:
        """Return whether anything sleeps after a call, in any engine."""
        answers = require_all(await self._engine.call(f"{SLEEPING}.{verb}", data))
        return any(answer.scheduler == b"1" for answer in answers)

    def _check(self) -> None:
        if not self.is_on:
            raise switched_off(
                "sleep mode",
                "--enable-sleep-mode; /pause and /resume work without it, and keep the cache",
            )


def switched_off(what: str, switch: str) -> HTTPException:
    """Return the error of a route that needs a flag."""
    return HTTPException(
        404, {"message": f"{what} is off; start the server with {switch}.", "code": "not_served"}
    )
