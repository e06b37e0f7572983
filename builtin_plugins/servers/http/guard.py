"""What every request passes before and after its route: keys, limits, request id, errors,
measurements.

Plain ASGI, so that it costs next to nothing per streamed chunk and routes of plugins cannot slip
past it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.servers.http.door import Door, Passage
from builtin_plugins.servers.http.errors import ErrorAnswer, Form, Refused, describe
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.parts import Outbox, Parts, parts
from builtin_plugins.servers.http.turnstile import Turnstile
from core.api import HttpStats, PluginError, ServerActivity
from core.logs import Seldom
from core.text.places import Places

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,200}")


class Guard:
    """Wraps the router. Lets a request pass, or answers it itself."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        api_keys: Iterable[str] = (),
        public_paths: Collection[str] = (),
        request_id_headers: bool = False,
        template_of: Callable[[str], str] = lambda path: "",
        error_forms: Mapping[str, Form] | None = None,
        methods: Mapping[str, str] | None = None,
        measure: Callable[[HttpStats], None] = lambda stats: None,
    ) -> None:
        """`error_forms`: by template, where errors have another form than OpenAI's; `methods`: by
        template, all there are.
        """
        self._app = app
        self._limits = limits
        self._keys = tuple(_digest(key.encode()) for key in api_keys)
        self._door = Door(limits)
        self._turnstile = Turnstile()
        self._reading = Places(1)
        """For the one request whose large body is being parsed."""
        self._outbox = Outbox()
        self._public = frozenset(public_paths)
        self._request_id_headers = request_id_headers
        self._template_of = template_of
        self._error_forms = error_forms or {}
        self._methods = methods or {}
        self._measure = measure
        self._seldom = Seldom(log)
        self.activity = ServerActivity()
        """What routes are told; when it says draining, only public paths are served."""
        self.is_crowded: Callable[[], bool] = lambda: False
        """Says whether there are more connections than may be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["server"] = self.activity
        if scope["type"] != "http":
            await self._websocket(scope, receive, send)
            return
        started_s = time.perf_counter()
        template = self._template_of(scope["path"])
        answer = _Answer(
            scope, send, self._headers(scope), self._outbox, self._error_forms.get(template)
        )
        passage = self._door.enter(self._name(scope))
        scope["state"]["handed_over"] = passage.leave
        scope["state"]["reading"] = self._reading
        scope["state"]["describe"] = partial(self._told, scope)
        scope["state"]["template"] = template
        counted = scope["path"] not in self._public
        self.activity.open_requests += counted
        try:
            await self._serve(scope, receive, answer, passage)
        finally:
            passage.leave()
            self.activity.open_requests -= counted
            duration_s = time.perf_counter() - started_s
            name = _request_id(scope).decode()
            self._measure(
                HttpStats(template, scope["method"], answer.status, duration_s, name, answer.error)
            )

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, passage: Passage
    ) -> None:
        try:
            self._admit(scope)
            passage.announce(_announced(scope))
            if scope["path"] not in self._public:
                await self._turnstile.enter()
            await self._app(scope, _limited(receive, self._limits, passage), answer.send)
        except asyncio.CancelledError:
            if not self.activity.draining:
                raise
            detail = {
                "message": "the server was stopped before the answer was complete.",
                "code": "draining",
            }
            await answer.fail(describe(HTTPException(503, detail)))
        except Refused as refused:
            await answer.fail(refused.answer)
        except Exception as error:  # noqa: BLE001 - the last boundary: every exception becomes an answer
            told = self._told(scope, error)
            if told.status == 405:  # the router knows one of a path's routes only
                allowed = self._methods.get(self._template_of(scope["path"]), "")
                told = replace(told, headers={**told.headers, "Allow": allowed})
            await answer.fail(told)

    def _told(self, scope: Scope, error: BaseException) -> ErrorAnswer:
        """Return the answer to an exception, with the id that the request has, or one for who asks
        about it.
        """
        state = scope["state"]
        known = state.get("request_id") or _request_id(scope).decode() or secrets.token_hex(16)
        if isinstance(error, PluginError):
            self._seldom.error(
                error.culprit, f"{error} Request: {known!r}.", error.__cause__ or error
            )
        return describe(error, known)

    def _admit(self, scope: Scope) -> None:
        """Raise `HTTPException` or `Refused` for a request that may not pass."""
        _check_head(scope, self._limits)
        if scope["path"] in self._public:
            return
        if self._keys and not self._known(scope):
            raise HTTPException(
                401,
                "no valid API key: send `Authorization: Bearer KEY`, or `x-api-key: KEY`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self.activity.draining:
            detail = {
                "message": "the server is shutting down; try another one.",
                "code": "draining",
            }
            raise HTTPException(503, detail, headers={"Retry-After": "1", "Connection": "close"})
        if self.is_crowded():
            raise Refused(self._limits.crowded())
        _check_announced(_header(scope, b"content-length"), self._limits.request_bytes)

    def _known(self, scope: Scope) -> bytes:
        """Return the digest of the key that a client shows, or nothing; what is compared takes the
        same time always.
        """
        shown = _shown_keys(scope)
        found = [
            known for known in self._keys for given in shown if secrets.compare_digest(given, known)
        ]
        return found[0] if found else b""

    def _name(self, scope: Scope) -> str:
        """Return a name for the client, and tell it the routes: its key where there are several,
        else its address.
        """
        key = self._known(scope) if len(self._keys) > 1 else b""
        if key:
            name = key.hex()[:16]
        else:
            peer = scope.get("client")
            name = _network(peer[0]) if peer else "local"
        scope["state"]["client"] = name
        return name

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        if not self._request_id_headers:
            return []
        request_id = _request_id(scope) or secrets.token_hex(16).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        return [(b"x-request-id", request_id)]

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._admit(scope)
        except (HTTPException, Refused):
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
            return
        await self._app(scope, receive, send)


class _Answer:
    """Watches what a route sends, so that an error can still be told in the right form."""

    def __init__(
        self,
        scope: Scope,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        outbox: Outbox,
        error_form: Form | None = None,
    ) -> None:
        self._scope = scope
        self._send = send
        self._outbox = outbox
        self._parts: Parts | None = None
        self._error_form = error_form
        self._headers = headers
        self._started = self._ended = self._streams_events = False
        self.status = 499
        """Of an answer that never began: the client had left."""
        self.error = ""
        """What was said against the request."""

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers."""
        if message["type"] == "http.response.start":
            self._started = True
            self.status = message["status"]
            headers = message.get("headers", ())
            self._streams_events = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in headers
            )
            message = {**message, "headers": [*headers, *self._headers]}
            if self._streams_events:
                self._parts = self._scope["state"]["parts"] = parts(
                    self._scope, self._send, self._outbox
                )
        elif message["type"] == "http.response.body":
            if self._parts is not None:
                self._parts.flush()
            self._ended = not message.get("more_body")
        await self._send(message)

    async def fail(self, answer: ErrorAnswer) -> None:
        """Say what went wrong: as the answer, or as the last event of a stream that has begun."""
        self.error = answer.message
        if self._ended:
            return
        body = answer.body(self._error_form)
        if not self._started:
            headers = [
                (name.lower().encode(), value.encode()) for name, value in answer.headers.items()
            ]
            headers += [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
            await self.send(
                {"type": "http.response.start", "status": answer.status, "headers": headers}
            )
            await self.send({"type": "http.response.body", "body": body})
        elif self._streams_events:
            told = b"data: " + body + b"\n\n"
            tail = (
                told + b"data: [DONE]\n\n" if self._error_form is None else b"event: error\n" + told
            )
            await self.send({"type": "http.response.body", "body": tail})
        else:
            raise RuntimeError(
                f"an answer broke off: {answer.message}"
            )  # uvicorn then cuts the connection


def _announced(scope: Scope) -> int:
    """Return how long the body is said to be; 0 where nothing is said that could be read."""
    length = _header(scope, b"content-length")
    return int(length[:20]) if length.isdigit() else 0


def _check_announced(length: bytes, most: int) -> None:
    if length and not length.isdigit():
        raise HTTPException(400, "the Content-Length header is not a number.")
    if length and int(length[:20]) > most:
        raise _too_large(most)


def _check_head(scope: Scope, limits: Limits) -> None:
    """Refuse what one chunk brought before anybody could look at it."""
    headers = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in headers)
    if size > limits.head_bytes or len(headers) > limits.headers:
        raise Refused(limits.head_too_large())


def _limited(receive: Receive, limits: Limits, passage: Passage) -> Receive:
    """Return a `receive` that refuses a body that is too large, takes too long, or is more than may
    be in flight.
    """
    deadline_s = asyncio.get_running_loop().time() + limits.read_timeout_s
    seen = 0
    is_whole = False

    async def limited() -> Message:
        nonlocal seen, is_whole
        if is_whole:
            return await receive()  # for the end of the connection; however long the answer takes
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise Refused(limits.too_slow()) from None
        is_whole = message["type"] != "http.request" or not message.get("more_body")
        seen += len(message.get("body", b""))
        if seen > limits.request_bytes:
            raise _too_large(limits.request_bytes)
        passage.see(len(message.get("body", b"")))
        return message

    return limited


def _too_large(most: int) -> HTTPException:
    return HTTPException(
        413, f"the request body is larger than {most} bytes (--max-request-bytes)."
    )


def _header(scope: Scope, wanted: bytes) -> bytes:
    value: Any = next((value for name, value in scope["headers"] if name == wanted), b"")
    return bytes(value)


def _request_id(scope: Scope) -> bytes:
    """Return the id that a client gave its request; nothing where it gave none that can be shown."""
    given = _header(scope, b"x-request-id")
    return given if _REQUEST_ID.fullmatch(given) else b""


def _shown_keys(scope: Scope) -> tuple[bytes, bytes]:
    """Return digests of the keys that a client shows, one for each way; of nothing where it shows
    none.
    """
    scheme, _, key = _header(scope, b"authorization").partition(b" ")
    bearer = key if scheme.lower() == b"bearer" else b""
    return _digest(bearer.strip()), _digest(_header(scope, b"x-api-key").strip())


def _network(address: str) -> str:
    """Return an address, or of IPv6 the network that one client usually has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if found.version == 4:
        return address
    return (
        found.ipv4_mapped.compressed
        if found.ipv4_mapped
        else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    )


def _digest(key: bytes) -> bytes:
    """Return a digest of fixed length, so that the length of a key shows in no comparison."""
    return hashlib.sha256(key).digest()
