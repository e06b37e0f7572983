"""Writes the parts of a streamed answer straight to its connection. Knows chunked encoding; knows
no route.

An ASGI message for each part, and what a parser's state machine makes of it, cost several times
what the writing does.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope, Send


def parts(scope: Scope, send: Send, outbox: Outbox) -> Parts | None:
    """Return what writes an answer without a length, whose head `send` has sent; None where only
    `send` can.
    """
    cycle = getattr(send, "__self__", None)
    if (
        scope.get("http_version") != "1.1"
        or scope["method"] == "HEAD"
        or not hasattr(cycle, "transport")
    ):
        # a test's client, another server, something in between; or parts that are not chunks
        return None
    return Parts(cycle, outbox)


class Outbox:
    """Answers of which parts are to be written, all of them at the next turn of the event loop.

    Whoever makes a part and sends it, hundreds of times in turn, finds neither his own code nor the
    system's in the processor's caches: making all and then sending all takes less.
    """

    def __init__(self) -> None:
        self._full: list[Parts] = []

    def put(self, parts: Parts) -> None:
        """Have the parts of an answer written soon."""
        if not self._full:
            asyncio.get_running_loop().call_soon(self._write)
        self._full.append(parts)

    def _write(self) -> None:
        full = self._full
        self._full = []
        for parts in full:
            parts.flush()


class Parts:
    """Of one answer: `cycle` is uvicorn's, between whose messages ours are."""

    __slots__ = ("_cycle", "_flow", "_outbox", "_soon", "_write")

    def __init__(self, cycle: Any, outbox: Outbox) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._outbox = outbox
        self._soon = b""
        """What is to be written before anything else."""

    @property
    def must_wait(self) -> bool:
        """The client does not keep up: nothing more is to be written before it has read."""
        return bool(self._flow.write_paused)

    def write_soon(self, data: bytes) -> None:
        """Write a part at the next turn of the event loop, or before whatever else is written of
        this answer.
        """
        if not data:
            return
        if not self._soon:
            self._outbox.put(self)
        self._soon += data

    def write(self, data: bytes) -> None:
        """Write a part now; a client that has left gets nothing."""
        if self._soon:
            data = self._soon + data
            self._soon = b""
        if data and not self._cycle.disconnected:  # a part of no length would end the answer
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def flush(self) -> None:
        """Write now what was to be written soon."""
        self.write(b"")

    async def write_when_read(self, data: bytes) -> None:
        """Write a part once the client has read, or has left."""
        while self.must_wait and not self._cycle.disconnected:
            await self._flow.drain()
        self.write(data)
