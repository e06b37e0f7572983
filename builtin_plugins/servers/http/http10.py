"""Answers of unknown length to HTTP/1.0 clients: closing the connection ends them.

uvicorn does this with the parser h11. With httptools it sends chunks to every client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def end_by_closing(cycle: Any) -> None:
    """Make the answer of a new httptools cycle of uvicorn end by closing the connection."""
    send = cycle.send
    is_open_ended = False

    async def send_open_ended(message: Mapping[str, Any]) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            is_open_ended = not any(name.lower() == b"content-length" for name, _ in headers)
            if is_open_ended:
                cycle.chunked_encoding = False
        elif is_open_ended:
            # uvicorn then accepts the length and writes the body unchanged.
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_open_ended
