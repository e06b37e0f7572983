"""Writes the recorded chunks of one stream to every client, one write each: as little as a server
can do. uvloop if installed.

Run: python benchmarks/serving/bare_writer.py SECONDS_BETWEEN_CHUNKS RECORDED; prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from plain_fastapi import HOST, run_on_the_quickest_loop


class Bare(asyncio.Protocol):
    """Answers whatever is asked with a head, then with a chunk each time it is told to."""

    def __init__(self, head: bytes, streams: dict[Bare, int]) -> None:
        self._head = head
        self._streams = streams
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Begin to answer once there is a body."""
        self._asked += data
        if self._asked.endswith(b"}"):
            self.transport.write(self._head)
            self._streams[self] = 0

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client."""
        self._streams.pop(self, None)


async def bare(pause_s: float, head: bytes, chunks: list[bytes]) -> None:
    """Write each stream its next chunk, all of them in turn, at a pace."""
    streams: dict[Bare, int] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: Bare(head, streams), HOST, 0, backlog=2048
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    due_s = time.monotonic()
    while True:
        for stream, at in list(streams.items()):
            stream.transport.write(chunks[at])
            streams[stream] = at + 1
            if at + 1 == len(chunks):
                del streams[stream]
                stream.transport.close()
        due_s = max(due_s + pause_s, time.monotonic())
        await asyncio.sleep(due_s - time.monotonic())


def main() -> None:
    """Serve until ended."""
    recorded = json.loads(Path(sys.argv[2]).read_text())
    chunks = [chunk.encode("latin-1") for chunk in recorded["chunks"]]
    run_on_the_quickest_loop(bare(float(sys.argv[1]), recorded["head"].encode("latin-1"), chunks))


if __name__ == "__main__":
    main()
