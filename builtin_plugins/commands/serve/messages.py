"""Messages from the API process to its parent: one request, one answer, with descriptors."""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from typing import Any, Final

import msgspec

MAX_DESCRIPTORS: Final = 8
_LENGTH_BYTES: Final = 4


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start a process; the passed descriptor is its last argument."""

    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    leader: bool


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Query the exit status of an ended process."""

    pid: int


class SendLine(msgspec.Struct, frozen=True, tag=True):
    """Write a line to a process's standard input."""

    pid: int
    line: str


class Release(msgspec.Struct, frozen=True, tag=True):
    """Close a process's standard input."""

    pid: int


class Keep(msgspec.Struct, frozen=True, tag=True):
    """Preserve an item for the next API process."""

    name: str
    note: bytes
    paths: list[str]
    pid: int | None = None


class Serving(msgspec.Struct, frozen=True, tag=True):
    """The server is up."""

    stand_in: str


class Drained(msgspec.Struct, frozen=True, tag=True):
    """The server has stopped: no request is open any more."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Announce an intended exit; its status becomes the parent's."""

    status: int


Request = Launch | Ended | SendLine | Release | Keep | Serving | Drained | Leave


class Answer(msgspec.Struct, frozen=True):
    """Answer of the parent."""

    number: int = 0
    """Requested pid or exit status."""
    error: str = ""


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a whole message."""
    body = msgspec.msgpack.encode(message)
    ancillary_data = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    head = len(body).to_bytes(_LENGTH_BYTES, "big")
    connection.sendmsg([head], ancillary_data)
    connection.sendall(body)


def receive(connection: socket.socket, kind: Any) -> tuple[Any, list[int]]:
    """Return the next message and its descriptors (close-on-exec).

    Raises `EOFError` at the end.
    """
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    head, ancillary, _, _ = connection.recvmsg(_LENGTH_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, sort, data in ancillary:
        if (level, sort) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    head += _exactly(connection, _LENGTH_BYTES - len(head))
    body = _exactly(connection, int.from_bytes(head, "big"))
    return msgspec.msgpack.decode(body, type=kind), list(descriptors)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the peer process has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
