"""A TCP proxy that cuts a connection in the middle of a ZeroMQ frame."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CuttingProxy:
    """Forwards both directions, up to half of one frame."""

    def __init__(self, port: int, frame_bytes: int, which: int) -> None:
        """`which`: index of the cut frame among those of `frame_bytes` that `port` sends."""
        self._port = port
        self._half = frame_bytes // 2
        self._which = which
        # ZeroMQ's header of the last frame of a message.
        self._head = b"\x02" + frame_bytes.to_bytes(8, "big")
        self.was_cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepts = threading.Thread(target=self._accept, daemon=True)
        self._accepts.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        address = ("127.0.0.1", self._port)
        with client, suppress(OSError), socket.create_connection(address) as server:
            back = threading.Thread(target=self._forward, args=(server, client, True), daemon=True)
            back.start()
            self._forward(client, server)
            back.join()

    def _forward(self, source: socket.socket, target: socket.socket, cuts: bool = False) -> None:
        seen = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                seen += data
                if cuts and (cut_at := self._cut_position(seen)) is not None:
                    target.sendall(data[: max(0, cut_at - (len(seen) - len(data)))])
                    self.was_cut.set()
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _cut_position(self, seen: bytes) -> int | None:
        """Return the number of bytes before the cut; None: not reached yet."""
        if self.was_cut.is_set() or seen.count(self._head) <= self._which:
            return None
        start = -1
        for _ in range(self._which + 1):
            start = seen.index(self._head, start + 1)
        end = start + len(self._head) + self._half
        return end if len(seen) >= end else None

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._accepts.join()
        self._listener.close()


@contextmanager
def cutting(port: int, frame_bytes: int, which: int) -> Iterator[CuttingProxy]:
    """Run a proxy to a port."""
    proxy = CuttingProxy(port, frame_bytes, which)
    try:
        yield proxy
    finally:
        proxy.close()
