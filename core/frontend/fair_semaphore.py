"""A semaphore that is fair by client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairSemaphore:
    """An asyncio semaphore that serves waiting clients in turn, each one's
    oldest waiter first.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = num_slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiters by client; the next client comes first."""

    @property
    def num_waiting(self) -> int:
        """Number of waiters."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, client: str = "") -> AsyncGenerator[None]:
        """Hold a slot for the body of the `async with` statement."""
        await self.acquire(client)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, client: str = "") -> None:
        """Wait for a slot; `release` returns it. A cancelled waiter holds none."""
        if self._free:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(client, waiter)
            else:  # the slot was granted already
                self.release()
            raise

    def release(self) -> None:
        """Return a slot; the next waiter gets it."""
        self._free += 1
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            waiter = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not waiter.done():  # else its client has left
                self._free -= 1
                waiter.set_result(None)
                return

    def _forget(self, client: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client, deque())
        if waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[client]
