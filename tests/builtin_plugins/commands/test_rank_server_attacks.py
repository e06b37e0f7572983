"""The port of a rank supervisor: bytes that are no request, and too many connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from builtin_plugins.commands.serve.rank_servers import MAX_CONNECTIONS, RankServers
from core.config import EngineConfig
from core.config.sections import ParallelConfig
from tests.timeouts import TIMEOUT_S

GET = b"GET /health HTTP/1.1\r\nHost: ranks\r\n\r\n"


def with_supervisor(work: Callable[[int], None]) -> None:
    """Do some work in another thread next to the port of a supervisor, without servers."""

    async def main() -> None:
        parallel = ParallelConfig(data_parallel_size=2)
        supervisor = RankServers(replace(EngineConfig(), parallel=parallel))
        web = await asyncio.start_server(supervisor._answer, "127.0.0.1", 0)
        await asyncio.to_thread(work, web.sockets[0].getsockname()[1])
        web.close()
        if supervisor._answering:
            await asyncio.wait(supervisor._answering)

    asyncio.run(main())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)


def answer_to(port: int, data: bytes) -> bytes:
    """Return the answer to some bytes; empty if the connection is cut."""
    answer = b""
    with connect(port) as raw, suppress(ConnectionError):
        raw.sendall(data)
        while part := raw.recv(4096):
            answer += part
    return answer


def assert_works(port: int) -> None:
    head, _, body = answer_to(port, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert [each["rank"] for each in json.loads(body)["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    "attack",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        bytes(1000) + b"\r\n\r\n",
        b"GET " + b"/" * (1 << 20),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
    ],
    ids=["empty", "no path", "zeros", "oversized", "tls", "path"],
)
def test_bytes_that_are_no_probe_get_nothing_and_harm_nothing(attack: bytes) -> None:
    def work(port: int) -> None:
        answer = answer_to(port, attack)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 404")
        assert_works(port)

    with_supervisor(work)


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    def work(port: int) -> None:
        held = [connect(port) for _ in range(MAX_CONNECTIONS)]
        assert answer_to(port, b"") == b""
        for each in held:
            each.close()
        while not answer_to(port, GET):  # until the server has noticed
            pass
        assert_works(port)

    with_supervisor(work)
