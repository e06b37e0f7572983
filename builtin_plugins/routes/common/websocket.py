"""WebSocket endpoints that answer one message after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

POLL_S: Final = 0.25
"""Interval of checks for a draining server, in seconds."""
RESTART: Final = 1012
"""Close code of a server that stops."""
FORBIDDEN: Final = 1008
"""Close code of a page of another origin."""

Message = MutableMapping[str, Any]
"""A message of a WebSocket, as in ASGI."""
Answer = Callable[[Message], Coroutine[Any, Any, None]]
"""Sends the answer to one message."""


async def accept_websocket(websocket: WebSocket, allowed_origins: Collection[str]) -> bool:
    """Accept a connection; False, and closed, for pages of an origin that may not call.

    Programs have no origin.
    """
    origin = websocket.headers.get("origin")
    is_listed = origin is None or origin in allowed_origins or "*" in allowed_origins
    if not is_listed and urlsplit(origin).netloc != websocket.headers.get("host"):
        await websocket.close(FORBIDDEN, "the origin is not one of --allowed-origins")
        return False
    await websocket.accept()
    return True


async def serve_messages(websocket: WebSocket, answer: Answer) -> None:
    """Answer messages until the client leaves, which cancels an answer, or the server stops."""
    activity = websocket.scope["state"].get("server")
    message = asyncio.ensure_future(websocket.receive())
    try:
        while True:
            await asyncio.wait({message}, timeout=POLL_S)
            if message.done():
                received = message.result()
                if received["type"] == "websocket.disconnect":
                    return
                message = asyncio.ensure_future(websocket.receive())
                if not await _answer_one(answer(received), message):
                    return
            elif activity is not None and activity.draining:
                await websocket.close(RESTART, "the server stops")
                return
    finally:
        message.cancel()
        await asyncio.gather(message, return_exceptions=True)


async def _answer_one(
    answering: Coroutine[Any, Any, None], following: asyncio.Future[Message]
) -> bool:
    """Send one answer; return False if the client has left.

    `following` is the next message: a disconnect cancels the answer.
    """
    from starlette.websockets import WebSocketDisconnect  # lazy: offline use needs no framework

    answer = asyncio.ensure_future(answering)
    try:
        either: set[asyncio.Future[Any]] = {answer, following}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done() and following.result()["type"] == "websocket.disconnect":
            return False
        await answer
    except (WebSocketDisconnect, RuntimeError):  # sending to a closed connection
        return False
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
    return True


def error_message(described: Any) -> str:
    """Return the message of an error, which the server's `describe` has described."""
    error = described.fields()
    error["code"] = error["code"] or "error"
    content = {"type": "error", "status": described.status, "error": error}
    return msgspec.json.encode(content).decode()
