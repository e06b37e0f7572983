"""What the process that serves asks of its parent: one request, one answer, with descriptors beside
them.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from typing import Any, Final

import msgspec

MOST_DESCRIPTORS: Final = 8
_LENGTH_BYTES: Final = 4


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start a process; the descriptor beside it is its last argument."""

    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    leader: bool


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Tell how a process has ended that has."""

    pid: int


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Write a line to a process' standard input."""

    pid: int
    line: str


class Release(msgspec.Struct, frozen=True, tag=True):
    """Close a process' standard input."""

    pid: int


class Keep(msgspec.Struct, frozen=True, tag=True):
    """Keep something for the next life."""

    name: str
    note: bytes
    paths: list[str]
    pid: int | None = None


class Serving(msgspec.Struct, frozen=True, tag=True):
    """The server is up."""

    stand_in: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The process ends on purpose: what it exits with is what all exit with."""


Request = Launch | Ended | Tell | Release | Keep | Serving | Leave


class Answer(msgspec.Struct, frozen=True):
    """What the parent says."""

    number: int = 0
    """The pid, or the status, that was asked for."""
    error: str = ""


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message whole."""
    body = msgspec.msgpack.encode(message)
    beside = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    head = len(body).to_bytes(_LENGTH_BYTES, "big")
    connection.sendmsg([head], beside)
    connection.sendall(body)


def receive(connection: socket.socket, kind: Any) -> tuple[Any, list[int]]:
    """Return the next message and its descriptors, which no process we start inherits.

    Raises `EOFError` at the end.
    """
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
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
            raise EOFError("the other side has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
