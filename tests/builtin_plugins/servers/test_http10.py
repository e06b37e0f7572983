"""Answers of unknown length to HTTP/1.0 clients, with httptools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.servers.http.http10 import end_by_closing

START = {"type": "http.response.start", "status": 200}
PARTS = (b"data: a\n\n", b"", b"data: b\n\n")


def answered(
    headers: Sequence[tuple[bytes, bytes]], parts: Sequence[bytes], **scope: Any
) -> tuple[bytes, bool]:
    """Return the bytes of an answer by uvicorn with httptools, and whether it closes."""
    cycles = pytest.importorskip(
        "uvicorn.protocols.http.httptools_impl", reason="httptools is not installed"
    )
    written: list[bytes] = []
    closed = asyncio.Event()
    cycle = cycles.RequestResponseCycle(
        scope={"method": "POST", "http_version": "1.0", **scope},
        transport=SimpleNamespace(write=written.append, close=closed.set),
        flow=SimpleNamespace(write_paused=False),
        logger=logging.getLogger(__name__),
        access_logger=logging.getLogger(__name__),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=False,
        on_response=lambda: None,
    )
    end_by_closing(cycle)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    asyncio.run(cycle.run_asgi(app))
    assert cycle.response_complete
    return b"".join(written), closed.is_set()


def test_unknown_length_answer_ends_with_connection() -> None:
    text, closed = answered([(b"content-type", b"text/event-stream")], PARTS)
    head, _, body = text.partition(b"\r\n\r\n")
    assert body == b"".join(PARTS)
    assert closed
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


def test_known_length_answer_is_unchanged() -> None:
    text, closed = answered([(b"Content-Length", b"6")], [b"abc", b"def"])
    assert text.endswith(b"content-length: 6\r\nconnection: close\r\n\r\nabcdef")
    assert closed


def test_head_request_has_no_body() -> None:
    text, closed = answered([], [b"abc"], method="HEAD")
    assert text.endswith(b"\r\n\r\n")
    assert closed


@pytest.mark.parametrize(
    ("headers", "lengths"), [([], [0, 9, 0, 9, 0]), ([(b"content-length", b"18")], [0] * 5)]
)
def test_expected_content_length_matches_each_part(
    headers: Sequence[tuple[bytes, bytes]], lengths: list[int]
) -> None:
    """Runs without httptools too."""
    expected: list[int] = []

    async def send(message: Any) -> None:
        expected.append(cycle.expected_content_length)

    cycle = SimpleNamespace(send=send, chunked_encoding=None, expected_content_length=0)
    end_by_closing(cycle)

    async def run() -> None:
        await cycle.send({**START, "headers": headers})
        for part in PARTS:
            await cycle.send({"type": "http.response.body", "body": part, "more_body": True})
        await cycle.send({"type": "http.response.body"})

    asyncio.run(run())
    assert expected == lengths
    assert cycle.chunked_encoding is (None if headers else False)
