"""Answers to clients of HTTP/1.0 whose length nobody knows: they end with their connection, and are
not cut into chunks.

uvicorn does so with the parser h11. With httptools it sends chunks to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def end_by_closing(cycle: Any) -> None:
    """Have the answer of one of uvicorn's cycles with httptools, which has not begun, end by
    closing the connection.
    """
    send = cycle.send
    is_open_ended = False

    async def sent(message: Mapping[str, Any]) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            is_open_ended = not any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            )
            if is_open_ended:
                cycle.chunked_encoding = False
        elif is_open_ended:
            cycle.expected_content_length = len(
                message.get("body", b"")
            )  # what uvicorn finds right, and writes as it is
        await send(message)

    cycle.send = sent
