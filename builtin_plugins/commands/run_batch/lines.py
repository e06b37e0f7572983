"""Sends the lines of a batch to an ASGI application and formats its answers."""

from __future__ import annotations

import asyncio
import secrets
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

AT_ONCE: Final = 512
"""Maximum requests from the oldest unanswered one."""
MAX_BYTES: Final = 1 << 25
"""Maximum total bytes of these requests; a larger one runs alone."""
PATHS: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    }
)
"""Allowed endpoints of a line."""


class Line(msgspec.Struct, kw_only=True):
    """One request of a batch."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(slots=True)
class Tally:
    """Counts of answered and failed requests."""

    answered: int = 0
    failed: int = 0


class Batch:
    """Calls one application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def run(self, lines: Iterable[bytes], write: Callable[[bytes], None]) -> Tally:
        """Answer all lines concurrently; `write` gets the results in input order.

        Empty lines are skipped.
        """
        tally = Tally()
        held = 0
        in_flight: deque[tuple[asyncio.Task[tuple[bool, bytes]], int]] = deque()

        async def write_first() -> None:
            nonlocal held
            task, size = in_flight.popleft()
            good, result = await task
            tally.answered = tally.answered + good
            tally.failed = tally.failed + (not good)
            held -= size
            write(result)

        try:
            for number, text in enumerate(lines, 1):
                line = text.removeprefix(BOM_UTF8)
                if not line.strip():
                    continue
                while in_flight and (
                    len(in_flight) >= AT_ONCE
                    or held + len(line) > MAX_BYTES
                    or in_flight[0][0].done()
                ):
                    await write_first()
                in_flight.append((asyncio.ensure_future(self._answer(number, line)), len(line)))
                held += len(line)
                await asyncio.sleep(0)
            while in_flight:
                await write_first()
        finally:
            for task, _ in in_flight:
                task.cancel()
            await asyncio.gather(*(task for task, _ in in_flight), return_exceptions=True)
        return tally

    async def _answer(self, number: int, line: bytes) -> tuple[bool, bytes]:
        """Return whether a line succeeded, and its result line."""
        result: dict[str, Any] = {
            "id": f"batch_req_{secrets.token_hex(16)}",
            "custom_id": _custom_id(line),
        }
        try:
            request = msgspec.json.decode(line, type=Line)
            _check(request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            error_fields = {
                "message": f"line {number}: {error}",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
            return False, msgspec.json.encode(result | {"response": None, "error": error_fields})
        status, body = await _post(self._app, request.url, bytes(request.body))
        failed = status >= 400
        response = {
            "status_code": status,
            "request_id": f"req_{secrets.token_hex(16)}",
            "body": msgspec.Raw(body),
        }
        problem = (
            msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("error") if failed else None
        )
        return not failed, msgspec.json.encode(result | {"response": response, "error": problem})


def _check(request: Line) -> None:
    """Raise `ValueError` for a request that is not allowed in a batch."""
    if request.method != "POST":
        raise ValueError(f"method: must be POST, not {request.method[:20]!r}.")
    if request.url not in PATHS:
        raise ValueError(f"url: {request.url[:100]!r} is none of {', '.join(sorted(PATHS))}.")
    form = msgspec.json.decode(request.body, type=_Form)
    if form.stream:
        raise ValueError("body.stream: not supported in a batch. Omit it.")
    if form.encoding_format in ("bytes", "bytes_only"):
        raise ValueError("body.encoding_format: expected float or base64.")


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Form(msgspec.Struct):
    stream: Any = False
    encoding_format: Any = None


def _custom_id(line: bytes) -> str | None:
    """Return the custom id of a possibly invalid line."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(line, type=_Named).custom_id
    return None


async def _post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and body of an application's answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
    }
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    status = 500
    parts = list[bytes]()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        never: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        return await never  # the client never disconnects

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
