"""Parts of streamed answers go straight to their connection, and look as if uvicorn had sent them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.servers.http.guard import Guard
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.parts import Outbox, parts

SCOPE = {"http_version": "1.1", "method": "POST"}


class Cycle:
    """What is used of uvicorn's."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.disconnected = False
        self.read = asyncio.Event()
        self.transport = SimpleNamespace(write=self.written.append)
        self.flow = SimpleNamespace(write_paused=False, drain=self.read.wait)

    async def send(self, message: Any) -> None:
        raise AssertionError("not asked to")


def test_a_part_is_a_chunk_and_an_empty_one_is_not_the_end() -> None:
    cycle = Cycle()
    found = parts(SCOPE, cycle.send, Outbox())
    assert found is not None
    for data in (b"data: a\n\n", b"", b"x" * 300):
        found.write(data)
    assert b"".join(cycle.written) == b"9\r\ndata: a\n\n\r\n" + b"12c\r\n" + b"x" * 300 + b"\r\n"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_client_that_does_not_keep_up_is_waited_for_until_it_leaves(leaves: bool) -> None:
    async def run() -> None:
        cycle = Cycle()
        found = parts(SCOPE, cycle.send, Outbox())
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


def test_a_client_that_has_left_gets_nothing() -> None:
    cycle = Cycle()
    cycle.disconnected = True
    found = parts(SCOPE, cycle.send, Outbox())
    assert found is not None
    found.write(b"a")
    assert cycle.written == []


@pytest.mark.parametrize("scope", [{**SCOPE, "http_version": "1.0"}, {**SCOPE, "method": "HEAD"}])
def test_what_is_not_sent_in_chunks_goes_the_usual_way(scope: dict[str, str]) -> None:
    assert parts(scope, Cycle().send, Outbox()) is None


def test_what_stands_between_us_and_the_connection_is_not_passed_by() -> None:
    async def send(message: Any) -> None:
        """Stand between."""

    assert parts(SCOPE, send, Outbox()) is None


def test_what_is_written_soon_is_one_part_of_the_next_turn_for_all_answers() -> None:
    async def run() -> None:
        outbox = Outbox()
        cycles = [Cycle(), Cycle()]
        one, other = (parts(SCOPE, cycle.send, outbox) for cycle in cycles)
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


def test_an_answer_ends_behind_what_is_to_be_written_soon() -> None:
    class Recording(Cycle):
        async def send(self, message: Any) -> None:
            self.written.append(message["type"].encode())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        scope["state"]["parts"].write_soon(b"a")
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
