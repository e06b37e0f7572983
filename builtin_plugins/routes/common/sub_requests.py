"""Requests made from the messages of another transport, or from the parts of one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import Message


def sub_request(
    connection: HTTPConnection,
    fields: Mapping[str, Any],
    release: Callable[[], None] = lambda: None,
) -> Request:
    """Return an HTTP request of the connection's client with these fields as its body.

    Its client never disconnects: the reader of the connection cancels it. `release` is called when
    the body is no longer needed.
    """
    body = msgspec.json.encode(fields)
    messages: list[Message] = [{"type": "http.request", "body": body}]
    state = {**connection.scope.get("state", {}), "release_body": release}
    state.pop("direct_writer", None)  # an answer has no connection of its own
    scope = {
        **connection.scope,
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/json")],
        "state": state,
    }

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return Request(scope, receive)
