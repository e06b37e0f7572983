"""Chunks written directly to a connection equal those of uvicorn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.servers.http.direct_writer import WriteBatch, direct_writer
from builtin_plugins.servers.http.guard import Guard
from builtin_plugins.servers.http.limits import Limits

SCOPE = {"http_version": "1.1", "method": "POST"}


class Cycle:
    """The used parts of uvicorn's cycle."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.disconnected = False
        self.read = asyncio.Event()
        self.transport = SimpleNamespace(write=self.written.append)
        self.flow = SimpleNamespace(write_paused=False, drain=self.read.wait)

    async def send(self, message: Any) -> None:
        raise AssertionError("unexpected message")


def test_write_sends_chunk_and_ignores_empty_data() -> None:
    cycle = Cycle()
    found = direct_writer(SCOPE, cycle.send, WriteBatch())
    assert found is not None
    for data in (b"data: a\n\n", b"", b"x" * 300):
        found.write(data)
    assert b"".join(cycle.written) == b"9\r\ndata: a\n\n\r\n" + b"12c\r\n" + b"x" * 300 + b"\r\n"


@pytest.mark.parametrize("leaves", [False, True])
def test_write_when_read_waits_until_read_or_disconnect(leaves: bool) -> None:
    async def run() -> None:
        cycle = Cycle()
        found = direct_writer(SCOPE, cycle.send, WriteBatch())
        assert found is not None
        cycle.flow.write_paused = True
        assert found.must_wait
        waiting = asyncio.ensure_future(found.write_when_read(b"a"))
        await asyncio.sleep(0)
        assert cycle.written == []
        cycle.flow.write_paused = leaves
        cycle.disconnected = leaves
        cycle.read.set()
        await waiting
        assert cycle.written == ([] if leaves else [b"1\r\na\r\n"])

    asyncio.run(run())


def test_write_after_disconnect_is_ignored() -> None:
    cycle = Cycle()
    cycle.disconnected = True
    found = direct_writer(SCOPE, cycle.send, WriteBatch())
    assert found is not None
    found.write(b"a")
    assert cycle.written == []


@pytest.mark.parametrize("scope", [{**SCOPE, "http_version": "1.0"}, {**SCOPE, "method": "HEAD"}])
def test_no_direct_writer_without_chunked_encoding(scope: dict[str, str]) -> None:
    assert direct_writer(scope, Cycle().send, WriteBatch()) is None


def test_no_direct_writer_for_wrapped_send() -> None:
    async def send(message: Any) -> None:
        """Wrap the connection."""

    assert direct_writer(SCOPE, send, WriteBatch()) is None


def test_write_soon_batches_answers_in_next_iteration() -> None:
    async def run() -> None:
        batch = WriteBatch()
        cycles = [Cycle(), Cycle()]
        one, other = (direct_writer(SCOPE, cycle.send, batch) for cycle in cycles)
        assert one is not None
        assert other is not None
        for text in (b"a", b"", b"b"):
            one.write_soon(text)
            other.write_soon(text)
        other.write(b"c")
        assert [cycle.written for cycle in cycles] == [[], [b"3\r\nabc\r\n"]]
        await asyncio.sleep(0)
        assert [cycle.written for cycle in cycles] == [[b"2\r\nab\r\n"], [b"3\r\nabc\r\n"]]
        one.write_soon(b"d")
        await asyncio.sleep(0)
        assert cycles[0].written[1:] == [b"1\r\nd\r\n"]

    asyncio.run(run())


def test_pending_data_precedes_end_of_answer() -> None:
    class Recording(Cycle):
        async def send(self, message: Any) -> None:
            self.written.append(message["type"].encode())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        scope["state"]["direct_writer"].write_soon(b"a")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def run() -> list[bytes]:
        cycle = Recording()
        scope = {**SCOPE, "type": "http", "path": "/a", "query_string": b"", "headers": []}
        await Guard(app, Limits.from_options({}))(scope, receive, cycle.send)
        await asyncio.sleep(0)
        return cycle.written

    assert asyncio.run(run()) == [b"http.response.start", b"1\r\na\r\n", b"http.response.body"]
