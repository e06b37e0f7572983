"""Responses that are made while nobody waits, and those who come to read along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from fastapi import HTTPException

MOST_RUNS: Final = 256
"""At once; no connection bounds them."""


class Run:
    """One response under way, with everything its stream has told so far."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response
        """As it is by now."""
        self._told: list[bytes] = []
        self._news = asyncio.Event()
        self._ended = False
        self.task: asyncio.Task[None] | None = None

    def tell(self, event: bytes) -> None:
        """Add an event to the stream."""
        self._told.append(event)
        self._wake()

    def end(self) -> None:
        """No more events come."""
        self._ended = True
        self._wake()

    async def cancel(self) -> None:
        """End it, and wait for that."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})

    async def events(self, start: int = 0) -> AsyncGenerator[bytes]:
        """Yield the events from the given one on, as they come."""
        while True:
            while start < len(self._told):
                yield self._told[start]
                start += 1
            if self._ended:
                return
            await self._news.wait()

    def _wake(self) -> None:
        news = self._news
        self._news = asyncio.Event()
        news.set()


class Runs:
    """The responses that are being made in the background, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def get(self, response_id: str) -> Run | None:
        """Return one that is under way."""
        return self._runs.get(response_id)

    def start(self, run: Run, work: Any) -> None:
        """Let a coroutine make a response. Raises a 503 while there are too many."""
        if len(self._runs) >= MOST_RUNS:
            work.close()
            message = (
                f"{MOST_RUNS} responses are being made in the background already; come again later."
            )
            raise HTTPException(
                503, {"message": message, "code": "overloaded"}, {"Retry-After": "1"}
            )
        response_id = run.response["id"]
        self._runs[response_id] = run
        run.task = asyncio.ensure_future(work)
        run.task.add_done_callback(lambda task: self._ended(response_id, run))

    def _ended(self, response_id: str, run: Run) -> None:
        run.end()
        del self._runs[response_id]
