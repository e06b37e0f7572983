"""A few places at once, given in turns to the clients who want one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Places:
    """Holds so many at once; of those that wait, each client's oldest in turn. For one event loop."""

    def __init__(self, num_places: int) -> None:
        self._free = num_places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client; whose turn is next stands first."""

    @property
    def num_waiting(self) -> int:
        """How many wait for a place."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, client: str = "") -> AsyncGenerator[None]:
        """Hold a place for as long as the body of the statement lasts."""
        await self.enter(client)
        try:
            yield
        finally:
            self.leave()

    async def enter(self, client: str = "") -> None:
        """Return when one has a place, which `leave` gives back; who is cancelled before has none."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(client, turn)
            else:  # it was given, and is not used
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place to who is next."""
        self._free += 1
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            turn = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not turn.done():  # else its client has left
                self._free -= 1
                turn.set_result(None)
                return

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client, deque())
        if turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[client]
