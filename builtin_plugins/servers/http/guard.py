"""ASGI middleware around all routes: API keys, limits, request ids, errors, statistics.

Plain ASGI is cheap per streamed chunk, and plugins' routes cannot bypass it.
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
from types import MappingProxyType
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.servers.contract import ServerActivity
from builtin_plugins.servers.http.direct_writer import DirectWriter, WriteBatch, direct_writer
from builtin_plugins.servers.http.errors import ErrorAnswer, Form, Refused, describe
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.throttle import BodyLimiter, BodyReservation, StartThrottle
from core.api import PluginError
from core.api.concurrency import FairSemaphore
from core.api.serving import RateLimitedLogger
from core.api.telemetry import HttpStats

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,200}")


class Guard:
    """Wraps the router: passes requests on, or answers them."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        api_keys: Iterable[str] = (),
        tenant_header: str = "",
        public_paths: Collection[str] = (),
        request_id_headers: bool = False,
        logs_stacks: bool = False,
        template_of: Callable[[str], str] = lambda path: "",
        error_forms: Mapping[str, Form] | None = None,
        methods: Mapping[str, str] | None = None,
        measure: Callable[[HttpStats], None] = lambda stats: None,
        missing_paths: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`error_forms` are the forms of errors other than OpenAI's, and `methods` all methods, by
        path template.
        """
        self._app = app
        self._limits = limits
        self._keys = tuple(_digest(key.encode()) for key in api_keys)
        self._tenant_header = tenant_header.lower().encode("latin-1")
        self._body_limiter = BodyLimiter(limits)
        self._start_throttle = StartThrottle()
        self._body_parsing = FairSemaphore(1)
        """Held by the request with the large body that is being parsed."""
        self._write_batch = WriteBatch()
        self._public = frozenset(public_paths)
        self._request_id_headers = request_id_headers
        self._logs_stacks = logs_stacks
        self._template_of = template_of
        self._error_forms = error_forms or {}
        self._methods = methods or {}
        self._measure = measure
        self._missing_paths = missing_paths
        self._plugin_log = RateLimitedLogger(log)
        self.activity = ServerActivity()
        """Activity as routes see it; while draining, only public paths are served."""
        self.is_crowded: Callable[[], bool] = lambda: False
        """Returns whether there are more connections than allowed."""

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
            scope, send, self._headers(scope), self._write_batch, self._error_forms.get(template)
        )
        reservation = self._body_limiter.open(self._name(scope))
        scope["state"]["release_body"] = reservation.release
        scope["state"]["reserve_bytes"] = reservation.announce
        scope["state"]["reserve_values"] = reservation.announce_values
        scope["state"]["body_parsing"] = self._body_parsing
        scope["state"]["sse_keep_alive_s"] = self._limits.sse_keep_alive_s
        scope["state"]["describe"] = self._describe  # bound to the scope it would be a cycle
        scope["state"]["template"] = template
        counted = scope["path"] not in self._public
        self.activity.open_requests += counted
        try:
            await self._serve(scope, receive, answer, reservation)
        finally:
            reservation.release()
            scope["state"].pop("direct_writer", None)  # it has the scope, too: a cycle
            self.activity.open_requests -= counted
            duration_s = time.perf_counter() - started_s
            name = _request_id(scope).decode()
            self._measure(
                HttpStats(template, scope["method"], answer.status, duration_s, name, answer.error)
            )

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, reservation: BodyReservation
    ) -> None:
        try:
            self._admit(scope)
            reservation.announce(_announced(scope))
            if scope["path"] not in self._public:
                await self._start_throttle.enter()
            await self._app(scope, _limited(receive, self._limits, reservation), answer.send)
        except asyncio.CancelledError:
            if not self.activity.draining:
                raise
            detail = {
                "message": "the server was stopped before the answer was complete.",
                "code": "draining",
            }
            await answer.fail(describe(HTTPException(503, detail)))
        except Exception as error:  # noqa: BLE001 - every exception becomes an answer
            described = self._describe(scope, error)
            forget_frames(error)
            if described.status == 405:  # the router knows only one of a path's routes
                allowed = self._methods.get(self._template_of(scope["path"]), "")
                headers = {**described.headers, "Allow": allowed}
                described = replace(described, headers=headers)
            if described.status == 404 and not self._template_of(scope["path"]):
                described = self._explained(scope["path"], described)
            await answer.fail(described)

    def _explained(self, path: str, answer: ErrorAnswer) -> ErrorAnswer:
        """Return the answer for a path without a route, with what is missing if that is known."""
        found = path.rstrip("/")
        while found and found not in self._missing_paths:
            found = found.rpartition("/")[0]
        if not found:
            return answer
        message = f"{path[:200]} is not served: {self._missing_paths[found]}."
        return replace(answer, message=message, code="not_served")

    def _describe(self, scope: Scope, error: BaseException) -> ErrorAnswer:
        """Return the answer to an exception, with the request's id or a new one."""
        state = scope["state"]
        known = state.get("request_id") or _request_id(scope).decode() or secrets.token_hex(16)
        if self._logs_stacks:
            log.error(
                "%s %s failed", scope.get("method", "WebSocket"), scope["path"], exc_info=error
            )
        if isinstance(error, Refused):
            return error.answer
        if isinstance(error, PluginError):
            self._plugin_log.error(
                error.culprit, f"{error} Request: {known!r}.", error.__cause__ or error
            )
        return describe(error, known)

    def _admit(self, scope: Scope) -> None:
        """Raise `HTTPException` or `Refused` for a request that is not admitted."""
        _check_head(scope, self._limits)
        if scope["path"] in self._public:
            return
        if self._keys and not self._known(scope):
            raise HTTPException(
                401,
                "no valid API key: send `Authorization: Bearer KEY`, or `x-api-key: KEY`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        encoding = _header(scope, b"content-encoding").strip().lower()
        if encoding not in (b"", b"identity"):
            raise HTTPException(
                415,
                f"Content-Encoding: got {encoding[:40].decode('latin-1')}; expected none. Send the "
                "body uncompressed.",
                headers={"Accept-Encoding": "identity"},
            )
        if self.activity.draining:
            detail = {
                "message": "the server is shutting down; try another one.",
                "code": "draining",
            }
            raise HTTPException(503, detail, headers={"Retry-After": "1", "Connection": "close"})
        if self.is_crowded():
            raise Refused(self._limits.too_many_connections())
        _check_announced(_header(scope, b"content-length"), self._limits.request_bytes)

    def _known(self, scope: Scope) -> bytes:
        """Return the digest of the client's valid key, or nothing, in constant time."""
        digests = _key_digests(scope)
        found = [
            known
            for known in self._keys
            for given in digests
            if secrets.compare_digest(given, known)
        ]
        return found[0] if found else b""

    def _name(self, scope: Scope) -> str:
        """Return the client's name and store it for routes: its key if there are several keys, else
        its tenant or its address.

        Routes also get the owner of what the request leaves: the key, even if it is the only one.
        """
        key = self._known(scope)
        tenant = b""
        if self._tenant_header and not self._keys:
            tenant = _header(scope, self._tenant_header)
        if key and len(self._keys) > 1:
            name = key.hex()[:16]
        elif tenant:
            name = f"tenant-{_digest(tenant).hex()[:16]}"
        else:
            peer = scope.get("client")
            name = _network(peer[0]) if peer else "local"
        scope["state"]["client_name"] = name
        scope["state"]["owner"] = f"key-{key.hex()[:32]}" if key else name
        return name

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        if not self._request_id_headers:
            return []
        request_id = _request_id(scope) or secrets.token_hex(16).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        return [(b"x-request-id", request_id)]

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["describe"] = self._describe
        scope["state"]["open_body"] = partial(self._body_limiter.open, self._name(scope))
        try:
            self._admit(scope)
        except (HTTPException, Refused):
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
            return
        await self._app(scope, receive, send)


class _Answer:
    """The answer of a route, followed so that an error is reported in the right form."""

    def __init__(
        self,
        scope: Scope,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        write_batch: WriteBatch,
        error_form: Form | None = None,
    ) -> None:
        self._scope = scope
        self._send = send
        self._write_batch = write_batch
        self._writer: DirectWriter | None = None
        self._error_form = error_form
        self._headers = headers
        self._started = False
        self._ended = False
        self._streams_events = False
        self.status = 499
        """Status; 499 for an answer that never started: the client disconnected."""
        self.error = ""
        """Message of the error; empty for none."""

    async def send(self, message: Message) -> None:
        """Pass a message on, with the guard's headers."""
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
                self._writer = direct_writer(self._scope, self._send, self._write_batch)
                self._scope["state"]["direct_writer"] = self._writer
        elif message["type"] == "http.response.body":
            if self._writer is not None:
                self._writer.flush()
            self._ended = not message.get("more_body")
        await self._send(message)

    async def fail(self, answer: ErrorAnswer) -> None:
        """Report an error: as the answer, or as the last event of a started stream."""
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
            tail = b"data: " + body + b"\n\n"
            if self._error_form is None:
                tail += b"data: [DONE]\n\n"
            else:
                tail = b"event: error\n" + tail
            await self.send({"type": "http.response.body", "body": tail})
        else:
            # uvicorn then closes the connection
            raise RuntimeError(f"an answer broke off: {answer.message}")


def forget_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an exception and of those it comes from.

    They are in reference cycles with the frames of the request, and its body would stay in memory
    until the garbage collector finds them.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        forget_frames(error.__cause__)
        error = error.__context__


def _announced(scope: Scope) -> int:
    """Return the announced length of the body; 0 if it is unknown."""
    length = _header(scope, b"content-length")
    return int(length[:20]) if length.isdigit() else 0


def _check_announced(length: bytes, maximum: int) -> None:
    if length and not length.isdigit():
        raise HTTPException(400, "the Content-Length header is not a number.")
    if length and int(length[:20]) > maximum:
        raise _too_large(maximum)


def _check_head(scope: Scope, limits: Limits) -> None:
    """Raise `Refused` for a head that arrived whole and exceeds a limit."""
    headers = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in headers)
    if size > limits.head_bytes or len(headers) > limits.headers:
        raise Refused(limits.head_too_large())


def _limited(receive: Receive, limits: Limits, reservation: BodyReservation) -> Receive:
    """Return a `receive` that raises for a body that is too large or too slow, or exceeds the
    in-flight limit.
    """
    deadline_s = asyncio.get_running_loop().time() + limits.read_timeout_s
    seen = 0
    is_whole = False

    async def limited() -> Message:
        nonlocal seen, is_whole
        if is_whole:
            return await receive()  # only a disconnect follows, at any time
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise Refused(limits.too_slow()) from None
        is_whole = message["type"] != "http.request" or not message.get("more_body")
        seen += len(message.get("body", b""))
        if seen > limits.request_bytes:
            raise _too_large(limits.request_bytes)
        reservation.receive(len(message.get("body", b"")))
        return message

    return limited


def _too_large(maximum: int) -> HTTPException:
    return HTTPException(
        413, f"the request body is larger than {maximum} bytes (--max-request-bytes)."
    )


def _header(scope: Scope, header: bytes) -> bytes:
    value: Any = next((value for name, value in scope["headers"] if name == header), b"")
    return bytes(value)


def _request_id(scope: Scope) -> bytes:
    """Return the client's request id; empty without a printable one."""
    given = _header(scope, b"x-request-id")
    return given if _REQUEST_ID.fullmatch(given) else b""


def _key_digests(scope: Scope) -> tuple[bytes, bytes]:
    """Return the digests of the bearer token and of the `x-api-key` header; either may be empty."""
    scheme, _, key = _header(scope, b"authorization").partition(b" ")
    bearer = key if scheme.lower() == b"bearer" else b""
    return _digest(bearer.strip()), _digest(_header(scope, b"x-api-key").strip())


def _network(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if found.version == 4:
        return address
    if found.ipv4_mapped:
        return found.ipv4_mapped.compressed
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _digest(key: bytes) -> bytes:
    """Return a digest of fixed length, so comparisons do not reveal the length of a key."""
    return hashlib.sha256(key).digest()
