"""Client process that reads many event streams and counts events."""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Final

POLL_S: Final = 0.005
"""Pause between two polls in seconds.

Polling keeps the server's writes from waking the client each time.
"""


@dataclass
class Reader:
    """One open stream."""

    connection: socket.socket
    tail: bytes = b""
    events: int = 0
    num_bytes: int = 0
    recorded: list[bytes] = field(default_factory=list)
    """Received chunks, if recorded."""
    keeps: bool = False

    @staticmethod
    def request_bytes(host: str, path: str, body: bytes) -> bytes:
        """Return the bytes of a request."""
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    @property
    def is_whole(self) -> bool:
        """Return whether the stream ended regularly."""
        return self.tail.endswith(b"\r\n0\r\n\r\n")

    def read(self) -> bool:
        """Read available bytes; return whether the stream has ended."""
        data = self.connection.recv(1 << 16)
        if self.keeps:
            self.recorded.append(data)
        self.num_bytes += len(data)
        joined = self.tail + data
        # An event begins after a line end, in the same or the previous chunk.
        self.events += joined.count(b"data: ") - self.tail.count(b"data: ")
        self.tail = joined[-16:]
        return not data or self.is_whole


def read_all(
    host: str, port: int, path: str, body: bytes, num_streams: int, *, keep: bool = False
) -> list[Reader]:
    """Open streams and read them to the end; with `keep` the first one is recorded."""
    request = Reader.request_bytes(host, path, body)
    readers = [Reader(socket.create_connection((host, port))) for _ in range(num_streams)]
    readers[0].keeps = keep
    with selectors.DefaultSelector() as ready:
        for reader in readers:
            ready.register(reader.connection, selectors.EVENT_READ, reader)
            reader.connection.sendall(request)
        num_open = num_streams
        while num_open:
            time.sleep(POLL_S)
            for key, _ in ready.select(0):
                if key.data.read():
                    ready.unregister(key.fileobj)
                    key.data.connection.close()
                    num_open -= 1
    return readers


def main() -> None:
    """Read streams by the command line parameters, and print the results."""
    given = json.loads(sys.argv[1])
    body = json.dumps(given["body"]).encode()
    began_s = time.monotonic()
    readers = read_all(
        given["host"],
        given["port"],
        given["path"],
        body,
        given["streams"],
        keep=given.get("keep", False),
    )
    found = {
        "seconds": time.monotonic() - began_s,
        "events": sum(reader.events for reader in readers),
        "bytes": sum(reader.num_bytes for reader in readers),
        "complete": sum(reader.is_whole for reader in readers),
        "recorded": b"".join(readers[0].recorded).decode("latin-1"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
