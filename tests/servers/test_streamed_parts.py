"""Parts of streamed answers go straight to their connection, and look as if uvicorn had sent them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.servers.http.parts import parts

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
    found = parts(SCOPE, cycle.send)
    assert found is not None
    for data in (b"data: a\n\n", b"", b"x" * 300):
        found.write(data)
    assert b"".join(cycle.written) == b"9\r\ndata: a\n\n\r\n" + b"12c\r\n" + b"x" * 300 + b"\r\n"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_client_that_does_not_keep_up_is_waited_for_until_it_leaves(leaves: bool) -> None:
    async def run() -> None:
        cycle = Cycle()
        found = parts(SCOPE, cycle.send)
        assert found is not None
        cycle.flow.write_paused = True
        assert found.must_wait
        waiting = asyncio.ensure_future(found.write_when_read(b"a"))
        await asyncio.sleep(0)
        assert cycle.written == []
        cycle.flow.write_paused, cycle.disconnected = leaves, leaves
        cycle.read.set()
        await waiting
        assert cycle.written == ([] if leaves else [b"1\r\na\r\n"])

    asyncio.run(run())


def test_a_client_that_has_left_gets_nothing() -> None:
    cycle = Cycle()
    cycle.disconnected = True
    found = parts(SCOPE, cycle.send)
    assert found is not None
    found.write(b"a")
    assert cycle.written == []


@pytest.mark.parametrize("scope", [{**SCOPE, "http_version": "1.0"}, {**SCOPE, "method": "HEAD"}])
def test_what_is_not_sent_in_chunks_goes_the_usual_way(scope: dict[str, str]) -> None:
    assert parts(scope, Cycle().send) is None


def test_what_stands_between_us_and_the_connection_is_not_passed_by() -> None:
    async def send(message: Any) -> None:
        """Stand between."""

    assert parts(SCOPE, send) is None
