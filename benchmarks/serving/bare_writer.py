"""Minimal server that writes the recorded chunks of one stream to every client.

Lower bound for the cost of a server; uses uvloop if installed.

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
    """Responds to any request with a head and chunks."""

    def __init__(self, head: bytes, streams: dict[Bare, int]) -> None:
        self._head = head
        self._streams = streams
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add a client."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Start the response once the body is complete."""
        self._received += data
        if self._received.endswith(b"}"):
            self.transport.write(self._head)
            self._streams[self] = 0

    def connection_lost(self, error: Exception | None) -> None:
        """Remove a client."""
        self._streams.pop(self, None)


async def bare(pause_s: float, head: bytes, chunks: list[bytes]) -> None:
    """Write the next chunk to each stream at a fixed pace."""
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
    """Serve until stopped."""
    recorded = json.loads(Path(sys.argv[2]).read_text())
    chunks = [chunk.encode("latin-1") for chunk in recorded["chunks"]]
    run_on_the_quickest_loop(bare(float(sys.argv[1]), recorded["head"].encode("latin-1"), chunks))


if __name__ == "__main__":
    main()
