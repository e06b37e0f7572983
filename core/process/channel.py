"""Two ZeroMQ sockets between a process and the one it started, over a folder nobody else may enter.

The folder is removed as soon as both sides are connected, so nothing is left behind whatever ends
how.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from typing import Any, Final, Self

import msgspec
import zmq

_UP = "up"
_DOWN = "down"
_LONGEST_BASE: Final = 75
"""Unix sockets have paths of at most about 107 bytes."""
_LINGER_MS: Final = 1000
_RETRY_MS: Final = 10
"""How often a parent looks whether its child has come, and a child that waits for its parent
whether it still shall.
"""


class Channel:
    """Messages both ways, in order. `send` may be called by any thread, `receive` by one."""

    def __init__(
        self, outgoing: zmq.Socket[bytes], incoming: zmq.Socket[bytes], folder: str, kinds: Any
    ) -> None:
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
        folder = tempfile.mkdtemp(
            "", f"engine-{os.getpid()}-", base if len(base) < _LONGEST_BASE else "/tmp"
        )
        outgoing, incoming = _sockets()
        outgoing.set_hwm(0)  # a parent never waits for its child,
        outgoing.reconnect_ivl = _RETRY_MS
        outgoing.connect(
            f"ipc://{folder}/{_DOWN}"
        )  # alive or not: who binds would wait for somebody to connect
        incoming.bind(f"ipc://{folder}/{_UP}")
        return cls(outgoing, incoming, folder, kinds)

    @classmethod
    def connect(cls, folder: str, kinds: Any) -> Self:
        """Return the child's end; `kinds` is the union of messages it receives."""
        return cls(*_joined(folder), folder, kinds)

    def reconnect(self, folder: str) -> None:
        """Become, once closed, the child's end for another parent, who listens in another folder."""
        with self._lock:
            (self._out, self._in), self.folder, self._closed = _joined(folder), folder, False

    def send(self, message: Any) -> None:
        """Send a struct, or bytes that are one already encoded; after `close`, nothing happens.

        A child waits while its parent has a thousand messages to read.
        """
        data = message if isinstance(message, bytes) else self._encoder.encode(message)
        with self._lock:
            while not self._closed:
                with contextlib.suppress(zmq.Again):  # the other side has much to read, or has gone
                    self._out.send(data)
                    return

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message, or None when none came in time.

        Raises `zmq.ZMQError` after `close`.
        """
        if not self._in.poll(None if timeout_s is None else int(timeout_s * 1000)):
            return None
        return self._decoder.decode(self._in.recv())

    def hide(self) -> None:
        """Remove the sockets' names: both sides are connected, and nobody else shall be."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close both sockets; what was sent still gets a second to arrive. Safe to call twice."""
        # who waits in `send` sees it
        was_closed = self._closed
        self._closed = True
        with self._lock:
            if was_closed:
                return
            self._out.close(_LINGER_MS)
            self._in.close(0)
        self.hide()


def _sockets() -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    outgoing = context.socket(zmq.PUSH)
    incoming = context.socket(zmq.PULL)
    outgoing.sndtimeo = _RETRY_MS
    return outgoing, incoming


def _joined(folder: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Return a child's sockets in the folder it was told, having checked that it is this user's
    own.
    """
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    outgoing, incoming = _sockets()
    outgoing.connect(f"ipc://{folder}/{_UP}")
    incoming.bind(f"ipc://{folder}/{_DOWN}")
    return outgoing, incoming
