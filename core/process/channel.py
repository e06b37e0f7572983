"""Two ZeroMQ sockets between a process and the one it started, over a folder nobody else may enter.

The folder is removed as soon as both sides are connected, so nothing is left behind whatever ends how.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from typing import Any, Final, Self

import msgspec
import zmq

_UP, _DOWN = "up", "down"
_LONGEST_PATH: Final = 100
"""Unix sockets have paths of at most about 107 bytes."""
_LINGER_MS: Final = 1000
_RETRY_MS: Final = 10
"""How often a parent looks whether its child has come."""


class Channel:
    """Messages both ways, in order. `send` may be called by any thread, `receive` by one."""

    def __init__(self, outgoing: zmq.Socket[bytes], incoming: zmq.Socket[bytes], folder: str, kinds: Any) -> None:
        self.folder = folder
        self._out = outgoing
        self._in = incoming
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def listen(cls, kinds: Any) -> Self:
        """Return the parent's end; `kinds` is the union of messages it receives."""
        base = tempfile.gettempdir()
        folder = tempfile.mkdtemp(prefix="engine-", dir=base if len(base) < _LONGEST_PATH - 20 else "/tmp")
        outgoing, incoming = _sockets()
        outgoing.set_hwm(0)  # a parent never waits for its child,
        outgoing.reconnect_ivl = _RETRY_MS
        outgoing.connect(f"ipc://{folder}/{_DOWN}")  # alive or not: who binds would wait for somebody to connect
        incoming.bind(f"ipc://{folder}/{_UP}")
        return cls(outgoing, incoming, folder, kinds)

    @classmethod
    def connect(cls, folder: str, kinds: Any) -> Self:
        """Return the child's end; `kinds` is the union of messages it receives."""
        outgoing, incoming = _sockets()
        outgoing.connect(f"ipc://{folder}/{_UP}")
        incoming.bind(f"ipc://{folder}/{_DOWN}")
        return cls(outgoing, incoming, folder, kinds)

    def send(self, message: Any) -> None:
        """Send a struct, or bytes that are one already encoded; after `close`, nothing happens.

        A child waits while its parent has a thousand messages to read.
        """
        data = message if isinstance(message, bytes) else self._encoder.encode(message)
        with self._lock:
            if not self._closed:
                self._out.send(data)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message, or None when none came in time. Raises `zmq.ZMQError` after `close`."""
        if not self._in.poll(None if timeout_s is None else int(timeout_s * 1000)):
            return None
        return self._decoder.decode(self._in.recv())

    def hide(self) -> None:
        """Remove the sockets' names: both sides are connected, and nobody else shall be."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close both sockets; what was sent still gets a second to arrive. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._out.close(_LINGER_MS)
            self._in.close(0)
        self.hide()


def _sockets() -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    return context.socket(zmq.PUSH), context.socket(zmq.PULL)


def folder_of(address: str) -> str:
    """Return the folder a child was told, having checked that it is this user's own."""
    if os.stat(address).st_uid != os.getuid():
        raise PermissionError(f"{address} belongs to somebody else")
    return address
