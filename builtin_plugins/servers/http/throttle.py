"""Limits in-flight request bytes, per client and in total, and the rate at which requests start."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from builtin_plugins.servers.http.errors import Refused
from builtin_plugins.servers.http.limits import Limits

MAX_STARTS: Final = 16
"""Largest number of requests that start in one event loop iteration: some milliseconds of work."""


class BodyLimiter:
    """Counts the bytes of bodies, from the announced length until the body is released."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_client: dict[str, int] = {}
        self.num_bytes = 0
        """Number of bytes in flight."""

    @property
    def client_bytes(self) -> int:
        """Largest number of bytes in flight of one client."""
        return self._limits.client_bytes

    def open(self, client: str) -> BodyReservation:
        """Return the reservation of a new request, without bytes."""
        return BodyReservation(self, client)

    def reserve(self, client: str, num_bytes: int) -> None:
        """Count more bytes. Raises `Refused` over a limit."""
        client_bytes = self._by_client.get(client, 0) + num_bytes
        if client_bytes > self._limits.client_bytes:
            raise Refused(self._limits.client_over_limit())
        if self.num_bytes + num_bytes > self._limits.bytes_in_flight:
            raise Refused(self._limits.over_limit())
        self._by_client[client] = client_bytes
        self.num_bytes += num_bytes

    def release(self, client: str, num_bytes: int) -> None:
        """Stop counting bytes."""
        self.num_bytes -= num_bytes
        left = self._by_client.pop(client) - num_bytes
        if left:
            self._by_client[client] = left


class BodyReservation:
    """In-flight bytes of one request."""

    def __init__(self, limiter: BodyLimiter, client: str) -> None:
        self._limiter = limiter
        self._client = client
        self._reserved = 0
        self._received = 0
        self._is_released = False

    def announce(self, num_bytes: int) -> None:
        """Reserve the announced length of a body. Raises `Refused`."""
        if num_bytes > 0:
            self._limiter.reserve(self._client, num_bytes)
            self._reserved += num_bytes

    def announce_values(self, num_bytes: int) -> None:
        """Reserve the memory that the body's values take in addition to its text.

        Up to what one client may have, so that a request alone is never refused. Raises `Refused`.
        """
        self.announce(min(num_bytes, self._limiter.client_bytes - self._reserved))

    def receive(self, num_bytes: int) -> None:
        """Count received bytes, and reserve those that were not announced. Raises `Refused`."""
        self._received += num_bytes
        if not self._is_released:
            self.announce(max(0, self._received - self._reserved))

    def release(self) -> None:
        """Release the bytes: the body is no longer in memory. May be called twice."""
        self._is_released = True
        if self._reserved:
            self._limiter.release(self._client, self._reserved)
            self._reserved = 0


class StartThrottle:
    """Starts a few requests per event loop iteration, in order of arrival.

    A burst of requests then does not delay running streams. A few requests pass without delay.
    """

    def __init__(self) -> None:
        self._num_started = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Return when the request may start."""
        if self._num_started < MAX_STARTS and not self._waiting:
            self._count_start()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _count_start(self) -> None:
        self._num_started += 1
        if self._num_started == 1:
            asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._num_started = 0
        while self._waiting and self._num_started < MAX_STARTS:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its client has disconnected
                turn.set_result(None)
                self._count_start()
