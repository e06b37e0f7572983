"""Packets of messages over a pair of local sockets, in order; who sends never waits for who reads."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")
_CHUNK: Final = 1 << 15
"""Bytes of a packet: a socket's buffer holds several."""
_QUIETLY: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_MORE = b"\0"
_LAST = b"\1"


class Wire(Generic[T]):
    """One end. What does not fit into the socket's buffer is kept until `flush`."""

    def __init__(self, sock: socket.socket, kinds: Any) -> None:
        self.sock = sock
        self.is_closed = False
        """The other end has gone, or this one was closed."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[kinds]).decode
        self._waiting: deque[bytes] = deque()
        self._parts: list[bytes] = []

    def fileno(self) -> int:
        """Return the socket's number, for polling."""
        return self.sock.fileno()

    def send(self, messages: list[Any]) -> None:
        """Send messages together; nothing happens once the wire is closed."""
        data = self._encode(messages)
        for at in range(0, len(data), _CHUNK):
            part = data[at : at + _CHUNK]
            self._waiting.append((_LAST if at + _CHUNK >= len(data) else _MORE) + part)
        self.flush()

    def flush(self) -> bool:
        """Hand on as much as the socket takes; say whether that was all."""
        while self._waiting and not self.is_closed:
            try:
                self.sock.send(self._waiting[0], socket.MSG_DONTWAIT | _QUIETLY)
            except BlockingIOError:
                return False
            except OSError:
                self.is_closed = True
            else:
                self._waiting.popleft()
        return True

    def drain(self) -> None:
        """Hand on everything, however long it takes."""
        while not self.flush():
            select.select((), (self.sock,), ())

    def receive(self, *, wait: bool) -> list[T]:
        """Return the messages of the next packet; none where nothing has come, and where nothing
        will.
        """
        while not self.is_closed:
            try:
                data = self.sock.recv(_CHUNK + 1, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
                return []
            self._parts.append(data[1:])
            if data[:1] == _LAST:
                whole = b"".join(self._parts)
                self._parts = []
                messages: list[T] = self._decode(whole)
                return messages
        return []

    def close(self) -> None:
        """Close this end; safe to call twice."""
        with contextlib.suppress(OSError):  # an empty packet is the end where closing says nothing
            self.sock.send(b"", socket.MSG_DONTWAIT | _QUIETLY)
        self.is_closed = True
        self.sock.close()
