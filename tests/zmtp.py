"""Bytes that are no ZeroMQ peer's, or those of one that means harm."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.timeouts import TIMEOUT_S

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00"
"""Signature and version of ZMTP 3."""
NULL: Final = b"NULL".ljust(20, b"\0") + bytes(32)
"""The rest of a greeting without encryption."""
GREETING_BYTES: Final = 64
OVERSIZED: Final = struct.pack(">Q", 1 << 40)
"""Size of a frame of a tebibyte, after its flags."""


def ready(kind: str) -> bytes:
    """Return the handshake of a peer without encryption, up to its first message."""
    found = b"\x05READY"
    for name, value in (("Socket-Type", kind), ("Identity", "")):
        found += bytes([len(name)]) + name.encode() + struct.pack(">I", len(value)) + value.encode()
    return GREETING + NULL + bytes([4, len(found)]) + found


def deliver(raw: socket.socket, data: bytes) -> bytes:
    """Send bytes on a connection; return the other side's greeting, if they begin with one.

    libzmq disconnects a peer that sends more before it has the other side's greeting.
    """
    answer = b""
    raw.settimeout(TIMEOUT_S)
    with suppress(OSError):
        if (data[:1], data[9:10]) == (GREETING[:1], GREETING[9:10]):
            raw.sendall(data[:GREETING_BYTES])
            while len(answer) < GREETING_BYTES <= len(data) and (part := raw.recv(4096)):
                answer += part
            data = data[GREETING_BYTES:]
        raw.sendall(data)
    return answer


def send_raw(host: str, port: int, data: bytes, until: bytes = b"") -> bytes:
    """Send bytes on a new connection; return what comes back until it is closed.

    Without `until`, silence ends it, too; with it, only an answer that contains these bytes does.
    """
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as raw:
        answer = deliver(raw, data)
        raw.settimeout(TIMEOUT_S if until else 0.2)
        with suppress(OSError):
            while not (until and until in answer) and (part := raw.recv(4096)):
                answer += part
    return answer


class Recorder:
    """Forwards one connection and records what the client sends."""

    def __init__(self, host: str, port: int) -> None:
        self.data = bytearray()
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self._target = (host, port)
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            self._pump(client, server, self.data)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, data: bytearray | None = None) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                if data is not None:
                    data += part
                target.sendall(part)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def recorder(host: str, port: int) -> Iterator[Recorder]:
    """Record one connection to a port."""
    made = Recorder(host, port)
    try:
        yield made
    finally:
        made.close()
