"""What a client is told: an engine's answer, as it comes or whole, and what the router says itself."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from builtin_plugins.commands.route.upstream import OWN_HEADERS, Answer, Headers


class Telling:
    """An answer on its way to the client."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.has_begun = False
        """The client has heard of it: no other engine can be asked."""

    async def all_of(self, answer: Answer, *, streams: bool) -> None:
        """Pass an answer on: as it comes, or whole, so that one that breaks off can be asked again.

        Raises `Lost`.
        """
        if not streams:
            body = await answer.whole()
            self.has_begun = True
            await send_whole(self._send, answer, body)
            return
        async for piece in answer.pieces:
            if not self.has_begun:
                self.has_begun = True
                await _send_head(self._send, answer)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self.has_begun:
            await _send_head(self._send, answer)
        await self._send({"type": "http.response.body", "body": b""})

    async def broke_off(self) -> None:
        """End a stream whose engine was lost, so that the client knows that it is not whole."""
        error = _error(
            "the engine was lost in the midst of this answer; send the request again.",
            HTTPStatus.BAD_GATEWAY,
        )
        body = b"data: " + msgspec.json.encode(error) + b"\n\n"
        await self._send({"type": "http.response.body", "body": body})


def _error(message: str, status: HTTPStatus) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": status.phrase, "param": None, "code": int(status)}
    }


async def say_error(send: Any, status: HTTPStatus, message: str, retry_after: bytes = b"") -> None:
    """Refuse in OpenAI's form."""
    await send_json(
        send,
        status,
        _error(message, status),
        [(b"retry-after", retry_after)] if retry_after else (),
    )


async def send_json(send: Any, status: HTTPStatus, said: Any, headers: Headers = ()) -> None:
    """Answer with JSON."""
    body = msgspec.json.encode(said)
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_whole(send: Any, answer: Answer, body: bytes) -> None:
    """Pass on an answer that is whole."""
    await _send_head(send, answer, [(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Any, answer: Answer, more: Headers = ()) -> None:
    headers = [(name, value) for name, value in answer.headers if name.lower() not in OWN_HEADERS]
    await send(
        {"type": "http.response.start", "status": answer.status, "headers": [*headers, *more]}
    )
