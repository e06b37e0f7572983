"""HTTP calls to engines with streamed answers, and their forwarding to the client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import msgspec

from core.api import ConfigError

READ_BYTES: Final = 1 << 16
MAX_HEAD_BYTES: Final = 1 << 20
OWN_HEADERS: Final = frozenset(
    (
        b"host", b"content-length", b"connection", b"keep-alive", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"expect",
    )
)  # fmt: skip
"""Hop-by-hop headers, which are not forwarded."""
Headers = Sequence[tuple[bytes, bytes]]


class Lost(Exception):
    """An engine is unreachable, broke off, or violated HTTP."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of an engine."""

    url: str
    host: str
    port: int
    is_https: bool
    uds: str = ""
    """Unix socket to connect to instead of host and port."""

    @classmethod
    def parse(cls, url: str, flag: str) -> Address:
        """Parse the address of an engine. Raises `ConfigError` naming the flag."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"{flag}: got {url!r}; {error}.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/"):
            raise ConfigError(
                f"{flag}: got {url!r}; expected an address such as http://127.0.0.1:8000."
            )
        return cls(url.rstrip("/"), parts.hostname, port, parts.scheme == "https")


@dataclass(slots=True)
class Answer:
    """An engine's answer: head, and body as it arrives."""

    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]

    async def whole(self) -> bytes:
        """Return the body. Raises `Lost`."""
        return b"".join([piece async for piece in self.pieces])


@asynccontextmanager
async def call_engine(
    address: Address,
    method: bytes,
    target: bytes,
    headers: Headers,
    body: bytes,
    timeout_s: float | None,
) -> AsyncIterator[Answer]:
    """Call an engine on its own connection; leaving the context closes it, which aborts the
    request.

    `timeout_s` applies to each wait. Raises `Lost`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(address)
    except OSError as error:  # includes TimeoutError
        raise Lost(f"{address.url} cannot be reached: {error or type(error).__name__}") from error
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
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


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.uds:
        return await asyncio.open_unix_connection(address.uds)
    tls = ssl.create_default_context() if address.is_https else None
    return await asyncio.open_connection(address.host, address.port, ssl=tls)


async def _pieces(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for event in events:
        if isinstance(event, h11.Data):
            yield bytes(event.data)


async def _events(
    address: Address, http: h11.Connection, reader: asyncio.StreamReader, timeout_s: float | None
) -> AsyncIterator[Any]:
    """Yield the head and the body events of the answer."""
    try:
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(timeout_s):
                    http.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.EndOfMessage):
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise Lost(f"{address.url} closed the connection without a response")
            elif not isinstance(event, h11.InformationalResponse):
                yield event
    except (OSError, h11.RemoteProtocolError) as error:
        raise Lost(f"{address.url} broke off: {error or type(error).__name__}") from error


class Forwarder:
    """An answer being forwarded to the client."""

    def __init__(self, send: Any, on_begin: Callable[[], None]) -> None:
        """`on_begin` is called before the first part is sent."""
        self._send = send
        self._on_begin = on_begin
        self.has_begun = False
        """Whether the client has received a part; then no other engine can be tried."""

    async def forward(self, answer: Answer, *, streams: bool) -> None:
        """Forward an answer: streamed, or whole, so that a broken one can be retried.

        Raises `Lost`.
        """
        if not streams:
            body = await answer.whole()
            self._begin()
            await send_whole(self._send, answer, body)
            return
        async for piece in answer.pieces:
            if not self.has_begun:
                self._begin()
                await _send_head(self._send, answer)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self.has_begun:
            await _send_head(self._send, answer)
        await self._send({"type": "http.response.body", "body": b""})

    def _begin(self) -> None:
        self.has_begun = True
        self._on_begin()

    async def end_broken_stream(self) -> None:
        """End the stream of a lost engine with an error event."""
        error = _error(
            "the engine was lost during this response; retry the request.",
            HTTPStatus.BAD_GATEWAY,
        )
        body = b"data: " + msgspec.json.encode(error) + b"\n\n"
        await self._send({"type": "http.response.body", "body": body})


def _error(message: str, status: HTTPStatus) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": status.phrase, "param": None, "code": int(status)}
    }


async def send_error(send: Any, status: HTTPStatus, message: str, retry_after: bytes = b"") -> None:
    """Send an error in OpenAI's format."""
    await send_json(
        send,
        status,
        _error(message, status),
        [(b"retry-after", retry_after)] if retry_after else (),
    )


async def send_json(send: Any, status: HTTPStatus, value: Any, headers: Headers = ()) -> None:
    """Send JSON."""
    body = msgspec.json.encode(value)
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_whole(send: Any, answer: Answer, body: bytes) -> None:
    """Forward a complete answer."""
    await _send_head(send, answer, [(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Any, answer: Answer, more: Headers = ()) -> None:
    headers = [(name, value) for name, value in answer.headers if name.lower() not in OWN_HEADERS]
    await send(
        {"type": "http.response.start", "status": answer.status, "headers": [*headers, *more]}
    )
