"""A channel between a process and its child: two ZeroMQ sockets in a private
folder.

The folder is removed once both sides are connected, so that a crash leaves no files.
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

from core.api import EngineDead

_UP: Final = "up"
_DOWN: Final = "down"
_MAX_BASE_CHARS: Final = 75
"""Maximum length of the temporary folder's path; Unix socket paths have up to
about 107 bytes.
"""
_OTHER_BASE: Final = "/tmp"
_LINGER_MS: Final = 1000
_RETRY_MS: Final = 10
"""Interval of connection attempts and of checks for `close` while sending."""


class Channel:
    """Messages in both directions, in order.

    Any thread may call `send`, one may call `receive`.
    """

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
        """Return the parent's end; `kinds` is the union of messages that it
        receives.
        """
        base = tempfile.gettempdir()
        prefix = f"engine-{os.getpid()}-"
        if len(base) >= _MAX_BASE_CHARS:
            base = _OTHER_BASE
        try:
            folder = tempfile.mkdtemp("", prefix, base)
        except OSError:  # it was removed, or is full, since this process has started
            folder = tempfile.mkdtemp("", prefix, _OTHER_BASE)
        outgoing, incoming = _sockets()
        outgoing.set_hwm(0)  # a parent never blocks in `send`,
        outgoing.reconnect_ivl = _RETRY_MS
        # whether the child lives or not: a bound socket would wait for a connection.
        outgoing.connect(f"ipc://{folder}/{_DOWN}")
        incoming.bind(f"ipc://{folder}/{_UP}")
        return cls(outgoing, incoming, folder, kinds)

    @classmethod
    def connect(cls, folder: str, kinds: Any) -> Self:
        """Return the child's end; `kinds` is the union of messages that it
        receives.
        """
        outgoing, incoming = _join(folder)
        return cls(outgoing, incoming, folder, kinds)

    def reconnect(self, folder: str) -> None:
        """Turn the closed channel into the child's end for a parent in
        another folder.
        """
        with self._lock:
            self._out, self._in = _join(folder)
            self.folder = folder
            self._closed = False

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one as bytes; does nothing after
        `close`.

        A child blocks while its parent has a thousand unread messages.
        """
        data = message if isinstance(message, bytes) else self._encoder.encode(message)
        with self._lock:
            while not self._closed:
                # the other side is busy or has ended
                with contextlib.suppress(zmq.Again):
                    self._out.send(data)
                    return

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message, or None after the timeout.

        Raises `zmq.ZMQError` after `close`, and `EngineDead` for a message of another kind:
        messages of this channel cannot be trusted any more.
        """
        if not self._in.poll(None if timeout_s is None else int(timeout_s * 1000)):
            return None
        try:
            return self._decoder.decode(self._in.recv())
        except msgspec.DecodeError as error:
            raise EngineDead(
                f"a process received a message that it cannot read: {error}"
            ) from error

    def hide(self) -> None:
        """Remove the sockets' folder once both sides are connected."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close both sockets; sent messages have a second to arrive.

        May be called twice.
        """
        was_closed = self._closed
        self._closed = True  # ends a blocked `send`, which holds the lock
        with self._lock:
            if was_closed:
                return
            self._close_sockets()
        self.hide()

    def _close_sockets(self) -> None:
        self._out.close(_LINGER_MS)
        self._in.close(0)


def _sockets() -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    outgoing = context.socket(zmq.PUSH)
    incoming = context.socket(zmq.PULL)
    outgoing.sndtimeo = _RETRY_MS
    return outgoing, incoming


def _join(folder: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Return a child's sockets in its parent's folder, which must belong to
    the same user.
    """
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    outgoing, incoming = _sockets()
    outgoing.connect(f"ipc://{folder}/{_UP}")
    incoming.bind(f"ipc://{folder}/{_DOWN}")
    return outgoing, incoming
