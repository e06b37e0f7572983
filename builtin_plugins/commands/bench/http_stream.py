"""A fast HTTP/1.1 client for event streams, so that the client is not the bottleneck.

Reuses connections and parses answers packet by packet.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from core.api import ConfigError

READ_BYTES: Final = 1 << 18
OK: Final = 200

Take = Callable[[bytes], None]


class HttpError(Exception):
    """The server answered with an error status or violated HTTP."""


class _NoAnswer(HttpError):
    """The server closed the connection without an answer."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False


@dataclass(slots=True)
class _Head:
    status: int
    fields: dict[str, str]

    @property
    def keeps(self) -> bool:
        """Return whether the connection is reusable."""
        return self.fields.get("connection", "").lower() != "close"


class Dechunker:
    """Incremental decoder of chunked transfer encoding."""

    __slots__ = ("_buffer", "_left", "ended")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Remaining bytes of the current chunk, line end included."""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes that are complete so far."""
        buffer = self._buffer + data
        pieces = []
        at = 0
        while not self.ended:
            if self._left:
                piece = buffer[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                # The last two bytes of a chunk are its line end; they may be split over packets.
                pieces.append(
                    piece[: len(piece) - max(0, 2 - self._left)] if self._left < 2 else piece
                )
                if self._left:
                    break
                continue
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                break
            try:
                size = int(buffer[at:line_end].partition(b";")[0], 16)
            except ValueError as error:
                raise HttpError(f"not a chunk size: {buffer[at:line_end][:40]!r}") from error
            if size == 0:
                if buffer.find(b"\r\n\r\n", at) < 0:
                    break  # trailers or the final line end are missing
                self.ended = True
                break
            at = line_end + 2
            self._left = size + 2
        self._buffer = buffer[at:]
        return b"".join(pieces)


class HttpClient:
    """Calls one server, with any number of concurrent calls."""

    def __init__(self, base_url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--base-url {base_url!r} is invalid; expected an address such as "
                "http://127.0.0.1:8000."
            )
        try:
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"--base-url {base_url!r}: {error}.") from error
        self.host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        fields = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            **headers,
        }
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of the answer. Raises `HttpError`, `OSError` or `TimeoutError`."""
        pieces: list[bytes] = []
        await self._exchange(method, path, body, pieces.append)
        return b"".join(pieces)

    async def stream(self, path: str, body: bytes, take: Take, request_id: str = "") -> None:
        """Post a request and pass each event's data to `take` as it arrives.

        `request_id` is sent as `X-Request-Id`. Raises as `call`, and what `take` raises.
        """
        rest = b""

        def split(piece: bytes) -> None:
            nonlocal rest
            if b"\r" in piece:
                piece = piece.replace(b"\r", b"")  # some servers use CRLF; JSON contains no CR
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                for line in event.split(b"\n"):
                    if line.startswith(b"data:"):
                        take(line[5:].lstrip())

        own = f"X-Request-Id: {request_id}\r\n" if request_id else ""
        await self._exchange("POST", path, body, split, own)

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _exchange(
        self, method: str, path: str, body: bytes, take: Take, own_fields: str = ""
    ) -> None:
        request_line = f"{method} {self._prefix}{path} HTTP/1.1\r\n"
        fields = f"{self._fields}{own_fields}Content-Length: {len(body)}\r\n\r\n"
        head = request_line + fields
        async with asyncio.timeout(self._timeout_s):
            while True:
                connection = self._idle.pop() if self._idle else await self._connect()
                keeps = False
                try:
                    connection.writer.write(head.encode() + body)
                    answer = await _read_head(connection.reader)
                    await _read_answer(connection.reader, answer, take)
                    keeps = answer.keeps
                except _NoAnswer:
                    if connection.used:
                        continue  # the server closed an idle connection
                    raise
                finally:
                    if keeps:
                        connection.used = True
                        self._idle.append(connection)
                    else:
                        connection.writer.close()
                return

    async def _connect(self) -> _Connection:
        return _Connection(
            *await asyncio.open_connection(self.host, self.port, ssl=self._tls, limit=READ_BYTES)
        )


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise _NoAnswer("the server closed the connection without a response.") from error
    except asyncio.LimitOverrunError as error:
        raise HttpError(f"the response head is longer than {READ_BYTES} bytes.") from error
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if not first.startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
        raise HttpError(f"not an HTTP response: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return _Head(int(parts[1]), {name.lower(): value.strip() for name, _, value in pairs})


async def _read_answer(reader: asyncio.StreamReader, head: _Head, take: Take) -> None:
    """Pass the body on; raise the body of an error answer."""
    if head.status == OK:
        await _read_body(reader, head, take)
        return
    pieces: list[bytes] = []
    await _read_body(reader, head, pieces.append)
    raise HttpError(f"status {head.status}: {b''.join(pieces).decode('utf-8', 'replace')[:500]}")


async def _read_body(reader: asyncio.StreamReader, head: _Head, take: Take) -> None:
    broken = HttpError("the connection was lost before the response was complete.")
    if head.fields.get("transfer-encoding", "").lower() == "chunked":
        chunks = Dechunker()
        while not chunks.ended:
            data = await reader.read(READ_BYTES)
            if not data:
                raise broken
            take(chunks.feed(data))
    elif "content-length" in head.fields:
        left = int(head.fields["content-length"])
        while left:
            data = await reader.read(min(left, READ_BYTES))
            if not data:
                raise broken
            left -= len(data)
            take(data)
    else:  # until the connection ends
        head.fields["connection"] = "close"
        while data := await reader.read(READ_BYTES):
            take(data)
