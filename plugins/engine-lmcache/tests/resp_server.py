"""A minimal Redis server for LMCache's adapter `resp`, with faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer


class Values(ThreadingTCPServer):
    """Values by key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values: dict[bytes, bytes] = {}
        self.fault = ""
        """`refuse`: all answers are errors. `hang`: answers wait for `released`.

        `lose`: no value exists.
        """
        self.released = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(StreamRequestHandler):
    """One connection."""

    server: Values

    def handle(self) -> None:
        while command := self._read_any():
            answer = self._answer(*command)
            fault = self.server.fault
            if fault == "hang":
                self.server.released.wait()
            self.wfile.write(b"-ERR refused\r\n" if fault == "refuse" else answer)

    def _read_any(self) -> list[bytes]:
        """Return a command and its arguments; none: the other side is gone."""
        with suppress(ConnectionError):
            return self._read()
        return []

    def _read(self) -> list[bytes]:
        head = self.rfile.readline()
        found = []
        for _ in range(int(head[1:] or 0)):
            size = int(self.rfile.readline()[1:])
            found.append(self.rfile.read(size))
            self.rfile.readline()
        return found

    def _answer(self, command: bytes, *arguments: bytes) -> bytes:
        values = self.server.values
        key = arguments[0] if arguments else b""
        value = None if self.server.fault == "lose" else values.get(key)
        match command.upper():
            case b"SET":
                values[key] = arguments[1]
                return b"+OK\r\n"
            case b"GET":
                return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
            case b"EXISTS":
                return b":%d\r\n" % (value is not None)
            case b"DEL":
                return b":%d\r\n" % (values.pop(key, None) is not None)
            case b"PING":
                return b"+PONG\r\n"
        return b"-ERR unknown command\r\n"


@contextmanager
def serving() -> Iterator[Values]:
    """Serve nothing yet."""
    server = Values()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
