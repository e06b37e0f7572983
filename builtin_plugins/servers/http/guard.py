"""What every request passes before and after its route: keys, size limit, request id, errors.

Plain ASGI, so that it costs next to nothing per streamed chunk and routes of plugins cannot slip past it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Collection, Iterable
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.servers.http.errors import ErrorAnswer, describe

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,200}")


class Guard:
    """Wraps the router. Lets a request pass, or answers it itself."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Iterable[str] = (),
        public_paths: Collection[str] = (),
        max_request_bytes: int,
        request_id_headers: bool = False,
    ) -> None:
        self._app = app
        self._keys = tuple(_digest(key.encode()) for key in api_keys)
        self._public = frozenset(public_paths)
        self._max_bytes = max_request_bytes
        self._request_id_headers = request_id_headers
        self.draining = False
        """True: only public paths are served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._websocket(scope, receive, send)
            return
        answer = _Answer(send, self._headers(scope))
        try:
            self._admit(scope)
            await self._app(scope, _limited(receive, self._max_bytes), answer.send)
        except asyncio.CancelledError:
            if not self.draining:
                raise
            detail = {"message": "the server was stopped before the answer was complete.", "code": "draining"}
            await answer.fail(describe(HTTPException(503, detail)))
        except Exception as error:  # noqa: BLE001 - the last boundary: every exception becomes an answer
            await answer.fail(describe(error))

    def _admit(self, scope: Scope) -> None:
        """Raise `HTTPException` for a request that may not pass."""
        if scope["path"] in self._public:
            return
        if self._keys and not self._knows(scope):
            raise HTTPException(
                401, "no valid API key: send `Authorization: Bearer KEY`.", headers={"WWW-Authenticate": "Bearer"}
            )
        if self.draining:
            detail = {"message": "the server is shutting down; try another one.", "code": "draining"}
            raise HTTPException(503, detail, headers={"Retry-After": "1"})
        _check_announced(_header(scope, b"content-length"), self._max_bytes)

    def _knows(self, scope: Scope) -> bool:
        """Compare in constant time, with every key, so that timing tells nothing."""
        scheme, _, key = _header(scope, b"authorization").partition(b" ")
        given = _digest(key.strip())
        found = [secrets.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(found)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        if not self._request_id_headers:
            return []
        given = _header(scope, b"x-request-id")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        return [(b"x-request-id", request_id)]

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._admit(scope)
        except HTTPException:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
            return
        await self._app(scope, receive, send)


class _Answer:
    """Watches what a route sends, so that an error can still be told in the right form."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._started = self._ended = self._streams_events = False

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers."""
        if message["type"] == "http.response.start":
            self._started = True
            headers = message.get("headers", ())
            self._streams_events = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
            )
            message = {**message, "headers": [*headers, *self._headers]}
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self._ended = True
        await self._send(message)

    async def fail(self, answer: ErrorAnswer) -> None:
        """Say what went wrong: as the answer, or as the last event of a stream that has begun."""
        if self._ended:
            return
        if not self._started:
            body = answer.body()
            headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        elif self._streams_events:
            await self.send({"type": "http.response.body", "body": b"data: " + answer.body() + b"\n\ndata: [DONE]\n\n"})
        else:
            raise RuntimeError(f"an answer broke off: {answer.message}")  # uvicorn then cuts the connection


def _check_announced(length: bytes, most: int) -> None:
    if length and not length.isdigit():
        raise HTTPException(400, "the Content-Length header is not a number.")
    if length and int(length[:20]) > most:
        raise _too_large(most)


def _limited(receive: Receive, most: int) -> Receive:
    """Return a `receive` that stops as soon as more than `most` bytes of body have come."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
        return message

    return limited


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the request body is larger than {most} bytes (--max-request-bytes).")


def _header(scope: Scope, wanted: bytes) -> bytes:
    value: Any = next((value for name, value in scope["headers"] if name == wanted), b"")
    return bytes(value)


def _digest(key: bytes) -> bytes:
    """Return a digest of fixed length, so that the length of a key shows in no comparison."""
    return hashlib.sha256(key).digest()
