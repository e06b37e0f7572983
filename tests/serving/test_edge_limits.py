"""Over a socket: what many connections, many bytes and idle clients may cost the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE_S
from starlette.types import Scope
from test_limits import Served, busy, open_gate, post, read_answer, until

from builtin_plugins.servers.http.connections import AcceptFaults
from builtin_plugins.servers.http.door import Door
from builtin_plugins.servers.http.errors import Refused
from builtin_plugins.servers.http.guard import Guard
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.turnstile import MOST_AT_ONCE, Turnstile

ONE = post(b'{"prompt": "hello", "max_tokens": 5}')


def answered(connection):
    """Ask over a connection that stays, and wait for the answer."""
    connection.sendall(ONE)
    data = b""
    while b"usage" not in data:
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk


def test_a_connection_may_be_idle_for_longer_than_a_request_may_take_to_arrive():
    with (
        Served(request_read_timeout=0.3, timeout_keep_alive=30.0) as served,
        served.connect() as connection,
    ):
        answered(connection)
        (kept,) = served.server._server.server_state.connections
        since_s = kept.idle_since_s
        until(lambda: kept.loop.time() > since_s + 2.5)  # two looks at all connections at least
        answered(connection)
        assert served.server.app.limits.keep_alive_s == 30.0


def test_an_idle_connection_is_closed_when_its_time_is_over():
    with Served(timeout_keep_alive=0.3) as served, served.connect() as connection:
        answered(connection)
        assert connection.recv(65536) == b""


def test_a_second_request_that_does_not_arrive_is_refused_too():
    with (
        Served(request_read_timeout=0.3, timeout_keep_alive=30.0) as served,
        served.connect() as connection,
    ):
        answered(connection)
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost")
        assert read_answer(connection)[0] == 408


def test_whoever_is_idle_for_longest_goes_for_newcomers():
    with Served(max_connections=3) as served, contextlib.ExitStack() as stack:
        served.engine.gate.clear()
        busy(served, stack, 1)
        idle = [stack.enter_context(served.connect()) for _ in range(2)]
        until(lambda: len(served.server._server.server_state.connections) == 3)
        newcomer = stack.enter_context(served.connect())
        assert idle[0].recv(65536) == b""
        open_gate(served)
        answered(newcomer)
        answered(idle[1])


def test_sixty_idle_connections_and_sixty_four_files_leave_room_for_probes():
    """In a process of its own, whose limit of open files nobody can raise."""
    code = """
import logging, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
sys.path[:0] = sys.argv[1:]
logging.basicConfig(stream=sys.stdout)
from builtin_plugins.servers.http.server import HttpServer
from test_limits import Served
HttpServer.check(Served().config)
with Served() as served:
    print(served.server.url, flush=True)
    sys.stdin.read()
"""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, (here, *here.parents[:2]))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while not lines[-1].startswith("http"):
        assert lines[-1]
        lines.append(process.stdout.readline())
    url = httpx.URL(lines[-1].strip())
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            served = Served.__new__(Served)
            served.server = type("Url", (), {"url": str(url)})
            stack.enter_context(served.connect())
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert httpx.get(url.join("/livez"), timeout=PATIENCE_S).status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < give_up
    process.stdin.close()
    said = "".join(lines) + process.stdout.read()
    assert process.wait(PATIENCE_S) == 0
    assert "raise it (ulimit -n)" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) < 20
    process.stdout.close()


class Loop:
    def __init__(self):
        self.now_s = 0.0
        self.others = []

    def time(self):
        return self.now_s

    def default_exception_handler(self, context):
        self.others.append(context)


def test_connections_that_cannot_be_taken_are_a_line_a_minute(caplog):
    loop = Loop()
    faults = AcceptFaults([])
    no_room = {"exception": OSError(24, "Too many open files"), "socket": object()}
    with caplog.at_level(logging.WARNING):
        for second in range(121):
            loop.now_s = float(second)
            for _ in range(50):
                faults(loop, no_room)
    assert [record.getMessage() for record in caplog.records] == [
        "connections wait to be taken: Too many open files (1 times)",
        "connections wait to be taken: Too many open files (3050 times)",
    ]
    faults(loop, {"exception": ValueError()})
    assert len(loop.others) == 1


# --- bytes in flight


def limits_of(**options):
    return Limits.from_options(
        {
            "max_request_bytes": 100,
            "max_client_bytes_in_flight": 200,
            "max_bytes_in_flight": 500,
            **options,
        }
    )


def test_bytes_of_one_client_and_of_all_are_bounded():
    door = Door(limits_of())
    passages = [door.enter("a") for _ in range(2)]
    for passage in passages:
        passage.announce(100)
    with pytest.raises(Refused) as refused:
        door.enter("a").announce(1)
    assert (refused.value.answer.status, refused.value.answer.headers["Retry-After"]) == (429, "1")
    assert "--max-client-bytes-in-flight" in refused.value.answer.message
    door.enter("b").announce(100)
    door.enter("c").announce(200)
    with pytest.raises(Refused) as refused:
        door.enter("d").announce(1)
    assert (refused.value.answer.status, refused.value.answer.headers["Retry-After"]) == (503, "1")
    passages[0].leave()
    passages[0].leave()
    passages[0].see(50)  # what comes behind is of no body
    assert door.num_bytes == 400
    door.enter("a").announce(100)


def test_bytes_that_nobody_announced_are_counted_as_they_come():
    door = Door(limits_of())
    passage = door.enter("a")
    passage.see(60)
    passage.see(60)
    assert door.num_bytes == 120
    with pytest.raises(Refused):
        passage.see(100)
    passage.leave()
    assert door.num_bytes == 0
    assert door._by_client == {}
    announced = door.enter("a")
    announced.announce(100)
    announced.see(70)
    announced.see(30)
    assert door.num_bytes == 100


def test_a_client_with_too_much_on_its_way_is_told_so_and_others_are_served():
    keys = ["one", "two"]
    options = {
        "max_request_bytes": 1000,
        "max_client_bytes_in_flight": 1500,
        "max_bytes_in_flight": 9000,
    }
    with Served(api_key=keys, **options) as served, contextlib.ExitStack() as stack:
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one\r\ncontent-length: 1000\r\n\r\n{"
        waiting = stack.enter_context(served.connect())
        waiting.sendall(head.encode())
        until(lambda: served.server.app.guard._door.num_bytes == 1000)

        def ask(key):
            body = {"prompt": "x" * 600, "max_tokens": 1}
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(
                f"{served.server.url}/v1/completions",
                json=body,
                headers=headers,
                timeout=PATIENCE_S,
            )

        refused = ask("one")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert ask("two").status_code == 200
        waiting.close()
        until(lambda: served.server.app.guard._door.num_bytes == 0)
        assert ask("one").status_code == 200


def test_bytes_are_free_once_the_engine_has_the_request():
    with Served() as served, contextlib.ExitStack() as stack:
        served.engine.gate.clear()
        busy(served, stack, 3)
        assert served.server.app.guard._door.num_bytes == 0
        open_gate(served)


# --- whose a request is


def name_of(peer, headers=(), keys=("one", "two")):
    scope: Scope = {"client": peer, "headers": list(headers), "state": {}}
    name = Guard(None, limits_of(), api_keys=keys)._name(scope)
    assert scope["state"]["client"] == name
    return name


def test_a_client_is_its_key_where_there_are_several_and_else_its_address():
    one, two = ([(b"authorization", b"Bearer " + key)] for key in (b"one", b"two"))
    assert (
        name_of(("10.0.0.1", 1), one)
        == name_of(("10.0.0.2", 2), one)
        != name_of(("10.0.0.1", 1), two)
    )
    assert name_of(("10.0.0.1", 1), [(b"authorization", b"Bearer zzz")]) == "10.0.0.1"
    assert name_of(("10.0.0.1", 1), one, keys=["one"]) == "10.0.0.1"
    assert name_of(None) == "local"
    assert (
        name_of(("2001:db8::1", 1))
        == name_of(("2001:db8::ffff", 1))
        != name_of(("2001:db8:0:1::1", 1))
    )
    assert name_of(("::ffff:10.0.0.1", 1)) == "10.0.0.1"


def test_the_engine_is_told_whose_a_request_is():
    with Served() as served:
        served.complete()
        served.get("/v1/models")
        assert served.engine.options[0]["client"] == "127.0.0.1"
        body = {"messages": [{"role": "user", "content": "hello"}]}
        httpx.post(
            f"{served.server.url}/v1/chat/completions", content=json.dumps(body), timeout=PATIENCE_S
        )
        assert [options["client"] for options in served.engine.options] == ["127.0.0.1"] * 2


# --- a thousand at once


def test_requests_that_come_at_once_begin_a_few_in_each_turn():
    async def storm():
        turnstile = Turnstile()
        begun = []
        most = 0
        last = 0

        async def one(number):
            await turnstile.enter()
            begun.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(1000)]
        for task in tasks[100:200]:
            task.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            most = max(most, len(begun) - last)
            last = len(begun)
        assert begun == [*range(100), *range(200, 1000)]
        assert most <= 2 * MOST_AT_ONCE
        await one(1000)
        return begun

    assert len(asyncio.run(storm())) == 901
