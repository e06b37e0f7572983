"""Writes the parts of a streamed answer straight to its connection. Knows chunked encoding; knows no route.

An ASGI message for each part, and what a parser's state machine makes of it, cost several times what the writing does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Scope, Send

Write = Callable[[bytes], "Awaitable[None] | None"]
"""Writes a part; what it returns, if anything, is to be awaited before the next one: the client does not keep up."""


def writer(scope: Scope, send: Send) -> Write | None:
    """Return what writes parts of an answer without a length, whose head `send` has sent; None where only `send` can."""
    cycle = getattr(send, "__self__", None)
    if scope.get("http_version") != "1.1" or scope["method"] == "HEAD" or not hasattr(cycle, "transport"):
        return None  # a test's client, another server, something in between; or parts that are not chunks
    return _Parts(cycle).write


class _Parts:
    """Of one answer: `cycle` is uvicorn's, between whose messages ours are."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def write(self, data: bytes) -> Awaitable[None] | None:
        """Write a part, or wait until it can be written; a client that has left gets nothing."""
        if self._flow.write_paused:
            return self._when_read(data)
        if data and not self._cycle.disconnected:  # a part of no length would end the answer
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return None

    async def _when_read(self, data: bytes) -> None:
        if not self._cycle.disconnected:
            await self._flow.drain()
        if data and not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
