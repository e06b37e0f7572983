"""A call of one engine over HTTP: its answer piece by piece, as it comes. Knows HTTP; knows no API."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11

from core.api import ConfigError

READ_BYTES: Final = 1 << 16
MOST_HEAD_BYTES: Final = 1 << 20
OWN_HEADERS: Final = frozenset(
    (
        b"host", b"content-length", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"expect",
    )
)  # fmt: skip
"""Of one connection, not of what is said over it."""
Headers = Sequence[tuple[bytes, bytes]]


class Lost(Exception):
    """An engine cannot be reached, breaks off, or does not answer as HTTP demands."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens."""

    url: str
    host: str
    port: int
    is_https: bool

    @classmethod
    def of(cls, url: str, flag: str) -> Address:
        """Return the address of an engine. Raises `ConfigError` naming the flag."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"{flag} {url!r}: {error}.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/"):
            raise ConfigError(
                f"{flag} {url!r} is no address of a server; give one like http://127.0.0.1:8000."
            )
        return cls(url.rstrip("/"), parts.hostname, port, parts.scheme == "https")


@dataclass(slots=True)
class Answer:
    """What an engine answers: its head, and its body as it comes."""

    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]

    async def whole(self) -> bytes:
        """Return the body. Raises `Lost`."""
        return b"".join([piece async for piece in self.pieces])


@asynccontextmanager
async def ask(
    address: Address, method: bytes, target: bytes, headers: Headers, body: bytes, timeout_s: float
) -> AsyncIterator[Answer]:
    """Call an engine on a connection of its own, which leaving the context closes: the engine stops
    then.

    `timeout_s` is for whatever is waited for next. Raises `Lost`.
    """
    tls = ssl.create_default_context() if address.is_https else None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    except OSError as error:  # a time that is over is one, too
        raise Lost(f"{address.url} cannot be reached: {error or type(error).__name__}") from error
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD_BYTES)
        host = address.url.partition("://")[2].encode()
        fields = [
            (b"host", host),
            *headers,
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        sent = http.send(h11.Request(method=method, target=target, headers=fields))
        writer.write(
            (sent or b"")
            + (http.send(h11.Data(data=body)) or b"")
            + (http.send(h11.EndOfMessage()) or b"")
        )
        events = _events(address, http, reader, timeout_s)
        head = await anext(events)
        yield Answer(head.status_code, [*head.headers], _pieces(events))
    finally:
        writer.close()


async def _pieces(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for event in events:
        if isinstance(event, h11.Data):
            yield bytes(event.data)


async def _events(
    address: Address, http: h11.Connection, reader: asyncio.StreamReader, timeout_s: float
) -> AsyncIterator[Any]:
    """Yield the head of the answer, and what follows up to its end."""
    try:
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(timeout_s):
                    http.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.EndOfMessage):
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise Lost(f"{address.url} hung up without an answer")
            elif not isinstance(event, h11.InformationalResponse):
                yield event
    except (OSError, h11.RemoteProtocolError) as error:
        raise Lost(f"{address.url} broke off: {error or type(error).__name__}") from error
