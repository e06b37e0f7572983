"""Lets so many requests begin in one turn of the event loop, so that a thousand that come at once
hold up nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

MOST_AT_ONCE: Final = 16
"""Requests that begin in one turn: some milliseconds of work."""


class Turnstile:
    """First come, first served; free of cost while few come."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Return when it is one's turn."""
        if self._num_begun < MOST_AT_ONCE and not self._waiting:
            self._begin()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self) -> None:
        self._num_begun += 1
        if self._num_begun == 1:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < MOST_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else it has left
                turn.set_result(None)
                self._begin()
