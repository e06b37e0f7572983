"""A semaphore that is fair by client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairSemaphore:
    """An asyncio semaphore; serves waiting clients in turn, oldest waiter first.

    Any thread may call `release`, also after the event loop has ended.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = num_slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiters by client; the next client comes first."""
        self._lock = threading.RLock()  # for collected waiters

    @property
    def num_waiting(self) -> int:
        """Number of waiters."""
        with self._lock:
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
        with self._lock:
            if self._free:
                self._free -= 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except BaseException:
            if not self._forget(client, waiter):  # the slot was granted already
                self.release()
            raise

    def release(self) -> None:
        """Return a slot; the next waiter gets it."""
        with self._lock:
            self._free += 1
            while self._waiting:
                client = next(iter(self._waiting))
                queue = self._waiting.pop(client)
                waiter = queue.popleft()
                if queue:
                    self._waiting[client] = queue
                try:
                    waiter.get_loop().call_soon_threadsafe(_grant, waiter)
                except RuntimeError:  # its event loop is closed
                    continue
                self._free -= 1
                return

    def _forget(self, client: str, waiter: asyncio.Future[None]) -> bool:
        """Remove a waiter; return False for one that has been granted a slot."""
        with self._lock:
            queue = self._waiting.get(client, deque())
            if waiter not in queue:
                return False
            queue.remove(waiter)
            if not queue:
                del self._waiting[client]
            return True


def _grant(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # else cancelled: it returns the slot
        waiter.set_result(None)
