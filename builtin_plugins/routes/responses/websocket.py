"""`/v1/responses` over a WebSocket: responses one after the other on one connection.

A client sends `response.create` messages with the fields of a request, and receives the events of
its stream as messages. The newest response can be continued although it is not stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from starlette.types import Message
from starlette.websockets import WebSocket

from builtin_plugins.routes.common.body import decode_json
from builtin_plugins.routes.common.streams import EventStream
from builtin_plugins.routes.common.sub_requests import sub_request
from builtin_plugins.routes.common.websocket import accept_websocket, error_message, serve_messages
from builtin_plugins.routes.responses.responses import Responses
from builtin_plugins.routes.responses.session import Session
from core.api import InvalidRequest

CREATE: Final = "response.create"
"""Type of the messages of clients."""
_TRANSPORT_FIELDS: Final = ("type", "stream", "stream_options")


class ResponseSocket:
    """Endpoint `/v1/responses` of WebSocket connections."""

    def __init__(self, responses: Responses, allowed_origins: Collection[str]) -> None:
        self._responses = responses
        self._origins = frozenset(allowed_origins)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection until the client leaves or the server stops."""
        if await accept_websocket(websocket, self._origins):
            await serve_messages(websocket, partial(self._answer, websocket, Session()))

    async def _answer(self, websocket: WebSocket, session: Session, message: Message) -> None:
        """Send the events of a response, or an error."""
        state = websocket.scope["state"]
        reservation = state["open_body"]()
        state["server"].open_requests += 1
        previous: Any = None
        try:
            body = message.get("text") or message.get("bytes") or ""
            data = body.encode() if isinstance(body, str) else body
            reservation.receive(len(data))
            fields = _fields(data)
            previous = fields.get("previous_response_id")
            request = sub_request(websocket, {**fields, "stream": True}, reservation.release)
            request.scope["state"]["reserve_bytes"] = reservation.announce
            request.scope["state"]["reserve_values"] = reservation.announce_values
            stream = await self._responses.create(request, session)
            failed = await _send_events(websocket, stream)
        except Exception as error:  # noqa: BLE001 - every exception becomes a message
            failed = True
            described = state["describe"](websocket.scope, error)
            await websocket.send_text(error_message(described))
        finally:
            reservation.release()
            state["server"].open_requests -= 1
        if failed and isinstance(previous, str):
            session.evict(previous)


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a request. Raises `InvalidRequest`."""
    fields = decode_json(data)
    kind = fields.get("type") if isinstance(fields, dict) else None
    if kind != CREATE:
        raise InvalidRequest("type", f"got {kind!r:.100}; expected {CREATE!r}.")
    if fields.get("background"):
        raise InvalidRequest("background", "is not served here; send it as an HTTP request.")
    if fields.get("generate") is False:
        raise InvalidRequest("generate", "must be true: responses are not prepared ahead of time.")
    unwanted = (*_TRANSPORT_FIELDS, "background", "generate")
    return {name: value for name, value in fields.items() if name not in unwanted}


async def _send_events(websocket: WebSocket, stream: EventStream) -> bool:
    """Send the events of a stream; return whether the response has failed."""
    failed = False
    events: AsyncGenerator[bytes] = stream.events()
    async with aclosing(events):
        async for encoded in events:
            for text in _texts(encoded):
                failed = failed or text.startswith('{"type":"response.failed"')
                await websocket.send_text(text)
    return failed


def _texts(encoded: bytes) -> Iterator[str]:
    """Yield the data of server-sent events."""
    for line in encoded.split(b"\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").decode()
