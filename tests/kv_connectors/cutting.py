"""A proxy before a socket that cuts a connection when it has passed on half of a frame."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Cutter:
    """Passes on what is said, both ways, but for one frame."""

    def __init__(self, port: int, frame_bytes: int, which: int) -> None:
        """`which` of the frames of so many bytes is cut, of those that come from `port`, the first
        being 0.
        """
        self._to = port
        self._half = frame_bytes // 2
        self._left = which
        self._head = b"\x02" + frame_bytes.to_bytes(
            8, "big"
        )  # of a last frame of a message, as ZeroMQ writes it
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
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            back = threading.Thread(target=self._pass, args=(server, client, True), daemon=True)
            back.start()
            self._pass(client, server)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, looks: bool = False) -> None:
        seen = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                seen += data
                if looks and (passed := self._cut(seen)) is not None:
                    target.sendall(data[: max(0, passed - (len(seen) - len(data)))])
                    self.was_cut.set()
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _cut(self, seen: bytes) -> int | None:
        """Return after how many bytes the connection is cut; None: not by now."""
        if self.was_cut.is_set() or seen.count(self._head) <= self._left:
            return None
        at = -1
        for _ in range(self._left + 1):
            at = seen.index(self._head, at + 1)
        end = at + len(self._head) + self._half
        return end if len(seen) >= end else None

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # whoever waits for somebody is told
        self._accepts.join()
        self._listener.close()


@contextmanager
def cutting(port: int, frame_bytes: int, which: int) -> Iterator[Cutter]:
    """Stand before a port."""
    cutter = Cutter(port, frame_bytes, which)
    try:
        yield cutter
    finally:
        cutter.close()
