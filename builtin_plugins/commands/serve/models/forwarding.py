"""Requests on their way to the process of a model, and its answers on their way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from builtin_plugins.commands.route.proxy import (
    OWN_HEADERS,
    Address,
    Answer,
    Headers,
    Lost,
    call_engine,
)

SET_HERE: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
"""Headers that say which client a request comes from."""
NAME: Final = "model"
"""Field of bodies, and query parameter, that names the model."""


@dataclass(slots=True)
class Call:
    """A client's request, as a model's process gets it."""

    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    named: str | None = None
    """Model that the request names; None: it names none."""

    @property
    def target(self) -> bytes:
        """The path with its query."""
        return self.path + (b"?" + self.query if self.query else b"")

    @classmethod
    async def read(cls, request: Request) -> Call:
        """Return a request of this server."""
        scope = request.scope
        root = scope.get("root_path", "").encode()
        path = scope["raw_path"].partition(b"?")[0]
        path = path.removeprefix(root) if root and path.startswith(root + b"/") else path
        body = await request.body()
        call = cls(
            request.method.encode(), path, scope["query_string"], forwarded_headers(scope), body
        )
        call.named = call._take_query() or named_model(body)
        return call

    def _take_query(self) -> str:
        """Return the model that the query names, and remove it there."""
        pairs = parse_qsl(self.query.decode("latin-1"), keep_blank_values=True)
        names = [value for key, value in pairs if key == NAME]
        if not names:
            return ""
        self.query = urlencode([pair for pair in pairs if pair[0] != NAME]).encode()
        return names[-1]

    def to(self, address: Address, timeout_s: float | None = None) -> Any:
        """Send it; a context with the answer. Raises `Lost`."""
        return call_engine(address, self.method, self.target, self.headers, self.body, timeout_s)


def forwarded_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request for a model's process, which trusts this server."""
    hidden = OWN_HEADERS | SET_HERE
    headers = [(name, value) for name, value in scope["headers"] if name not in hidden]
    given_id = scope.get("state", {}).get("request_id")
    if given_id and not any(name == b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", given_id.encode()))
    peer = scope.get("client")
    if peer and peer[0]:
        headers.append((b"x-forwarded-for", peer[0].encode()))
    return [*headers, (b"x-forwarded-proto", scope.get("scheme", "http").encode())]


class _Named(msgspec.Struct):
    model: Any = None


_NAMED: Final = msgspec.json.Decoder(_Named)


def named_model(body: bytes) -> str | None:
    """Return the model that a body names; None: none, or the body is no JSON object."""
    try:
        model = _NAMED.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return model if isinstance(model, str) and model else None


class Forwarded:
    """The answer to a call by the first of several processes that does not answer 404."""

    def __init__(
        self,
        call: Call,
        addresses: Sequence[Callable[[], AbstractAsyncContextManager[Address]]],
        after: Callable[[int], None] = lambda status: None,
    ) -> None:
        """`addresses` are contexts in which the processes run; `after` gets the status."""
        self._call = call
        self._addresses = addresses
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the answer; a client that disconnects cancels its request."""
        release = scope.get("state", {}).get("release_body", lambda: None)
        await _until_disconnected(receive, self._forward(release, send))

    async def _forward(self, release: Callable[[], None], send: Send) -> None:
        call = self._call
        last = len(self._addresses) - 1
        for place, opened in enumerate(self._addresses):
            async with opened() as address, answered(call, address) as answer:
                if answer.status == 404 and place < last:
                    continue
                call.body = b""
                release()
                await _send(answer, send)
                self._after(answer.status)
                return


@asynccontextmanager
async def answered(call: Call, address: Address) -> AsyncIterator[Answer]:
    """Yield the answer of a process. Raises a 503 if the process ends before its answer does."""
    try:
        async with call.to(address) as answer:
            yield answer
    except Lost as error:
        detail = {
            "message": f"the model's process has ended ({error}); send the request again.",
            "code": "engine_dead",
        }
        raise HTTPException(503, detail, headers={"Retry-After": "1"}) from error


async def _send(answer: Answer, send: Send) -> None:
    """Send an answer, piece by piece."""
    headers = [
        (name, value)
        for name, value in answer.headers
        if name == b"content-length" or (name not in OWN_HEADERS and name != b"date")
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async for piece in answer.pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_disconnected(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work; cancel it when the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await asyncio.wait((working,))
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
