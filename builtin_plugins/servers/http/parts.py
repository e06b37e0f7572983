"""Writes the parts of a streamed answer straight to its connection. Knows chunked encoding; knows no route.

An ASGI message for each part, and what a parser's state machine makes of it, cost several times what the writing does.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope, Send


def parts(scope: Scope, send: Send) -> Parts | None:
    """Return what writes an answer without a length, whose head `send` has sent; None where only `send` can."""
    cycle = getattr(send, "__self__", None)
    if scope.get("http_version") != "1.1" or scope["method"] == "HEAD" or not hasattr(cycle, "transport"):
        return None  # a test's client, another server, something in between; or parts that are not chunks
    return Parts(cycle)


class Parts:
    """Of one answer: `cycle` is uvicorn's, between whose messages ours are."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def must_wait(self) -> bool:
        """The client does not keep up: nothing more is to be written before it has read."""
        return bool(self._flow.write_paused)

    def write(self, data: bytes) -> None:
        """Write a part now; a client that has left gets nothing."""
        if data and not self._cycle.disconnected:  # a part of no length would end the answer
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def write_when_read(self, data: bytes) -> None:
        """Write a part once the client has read, or has left."""
        while self.must_wait and not self._cycle.disconnected:
            await self._flow.drain()
        self.write(data)
