"""Writes the chunks of a streamed answer directly to its connection.

An ASGI message per chunk, with the parser's state machine, would cost several times as much.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope, Send


def direct_writer(scope: Scope, send: Send, batch: WriteBatch) -> DirectWriter | None:
    """Return the writer of an answer without a length, once `send` has sent its head.

    None if only `send` can write: with another server, a test client, a wrapper, or without chunks.
    """
    cycle = getattr(send, "__self__", None)
    if (
        scope.get("http_version") != "1.1"
        or scope["method"] == "HEAD"
        or not hasattr(cycle, "transport")
    ):
        return None
    return DirectWriter(cycle, batch)


class WriteBatch:
    """Writers with pending chunks; all are flushed in the next event loop iteration.

    Encoding all chunks first and sending them together uses the CPU caches better than alternating.
    """

    def __init__(self) -> None:
        self._pending: list[DirectWriter] = []

    def add(self, writer: DirectWriter) -> None:
        """Flush a writer in the next event loop iteration."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(writer)

    def _flush(self) -> None:
        pending = self._pending
        self._pending = []
        for writer in pending:
            writer.flush()


class DirectWriter:
    """Writer of one answer; its chunks come between the messages of uvicorn's `cycle`."""

    __slots__ = ("_batch", "_cycle", "_flow", "_pending", "_write", "num_writes")

    def __init__(self, cycle: Any, batch: WriteBatch) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._batch = batch
        self._pending = b""
        """Data to write before anything else."""
        self.num_writes = 0
        """Number of chunks written so far."""

    @property
    def must_wait(self) -> bool:
        """Whether the client does not keep up, so that writes must wait until it has read."""
        return bool(self._flow.write_paused)

    def write_soon(self, data: bytes) -> None:
        """Write data in the next event loop iteration, or before any other write."""
        if not data:
            return
        if not self._pending:
            self._batch.add(self)
        self._pending += data

    def write(self, data: bytes) -> None:
        """Write data now, unless the client has disconnected."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if data and not self._cycle.disconnected:  # an empty chunk would end the answer
            self.num_writes += 1
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def flush(self) -> None:
        """Write the pending data now."""
        self.write(b"")

    async def write_when_read(self, data: bytes) -> None:
        """Write data once the client has read or disconnected."""
        while self.must_wait and not self._cycle.disconnected:
            await self._flow.drain()
        self.write(data)
