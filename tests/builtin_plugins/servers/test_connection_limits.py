"""Limits of connections, in-flight bytes and idle clients, over a socket."""

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
from starlette.types import Scope

from builtin_plugins.servers.http.connections import AcceptErrorHandler
from builtin_plugins.servers.http.errors import Refused
from builtin_plugins.servers.http.guard import Guard
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.throttle import MAX_STARTS, BodyLimiter, StartThrottle
from tests.builtin_plugins.servers.test_http_limits import (
    Served,
    busy,
    open_gate,
    post,
    read_answer,
    until,
)
from tests.timeouts import TIMEOUT_S

ONE = post(b'{"prompt": "hello", "max_tokens": 5}')


def answered(connection):
    """Send a request over a keep-alive connection, and wait for the answer."""
    connection.sendall(ONE)
    data = b""
    while b"usage" not in data:
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk


def test_keep_alive_outlasts_receive_timeout():
    with (
        Served(request_read_timeout=0.3, timeout_keep_alive=30.0) as served,
        served.connect() as connection,
    ):
        answered(connection)
        (server_side,) = served.server._server.server_state.connections
        since_s = server_side.idle_since_s
        until(lambda: server_side.loop.time() > since_s + 2.5)  # at least two idle checks
        answered(connection)
        assert served.server.app.limits.keep_alive_s == 30.0


def test_idle_connection_closes_after_keep_alive():
    with Served(timeout_keep_alive=0.3) as served, served.connect() as connection:
        answered(connection)
        assert connection.recv(65536) == b""


def test_slow_second_request_is_rejected():
    with (
        Served(request_read_timeout=0.3, timeout_keep_alive=30.0) as served,
        served.connect() as connection,
    ):
        answered(connection)
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost")
        assert read_answer(connection)[0] == 408


def test_longest_idle_connection_is_closed_for_new_one():
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


def test_probes_work_near_file_descriptor_limit():
    """Run in a separate process with a fixed limit of open files."""
    code = """
import logging, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
sys.path[:0] = sys.argv[1:]
logging.basicConfig(stream=sys.stdout)
from builtin_plugins.servers.http.server import HttpServer
from tests.builtin_plugins.servers.test_http_limits import Served
HttpServer.check(Served().config)
with Served() as served:
    print(served.server.url, flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parents[3])],
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
        give_up = time.monotonic() + TIMEOUT_S
        while True:
            try:
                assert httpx.get(url.join("/livez"), timeout=TIMEOUT_S).status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < give_up
    process.stdin.close()
    output = "".join(lines) + process.stdout.read()
    assert process.wait(TIMEOUT_S) == 0
    assert "raise it (ulimit -n)" in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 20
    process.stdout.close()


class Loop:
    def __init__(self):
        self.now_s = 0.0
        self.others = []

    def time(self):
        return self.now_s

    def default_exception_handler(self, context):
        self.others.append(context)


def test_accept_failures_are_logged_once_per_minute(caplog):
    loop = Loop()
    faults = AcceptErrorHandler([])
    no_room = {"exception": OSError(24, "Too many open files"), "socket": object()}
    with caplog.at_level(logging.WARNING):
        for second in range(121):
            loop.now_s = float(second)
            for _ in range(50):
                faults(loop, no_room)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept connections: Too many open files (1 times)",
        "cannot accept connections: Too many open files (3050 times)",
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


def test_inflight_bytes_are_limited_per_client_and_total():
    limiter = BodyLimiter(limits_of())
    reservations = [limiter.open("a") for _ in range(2)]
    for reservation in reservations:
        reservation.announce(100)
    with pytest.raises(Refused) as refused:
        limiter.open("a").announce(1)
    assert (refused.value.answer.status, refused.value.answer.headers["Retry-After"]) == (429, "1")
    assert "--max-client-bytes-in-flight" in refused.value.answer.message
    limiter.open("b").announce(100)
    limiter.open("c").announce(200)
    with pytest.raises(Refused) as refused:
        limiter.open("d").announce(1)
    assert (refused.value.answer.status, refused.value.answer.headers["Retry-After"]) == (503, "1")
    reservations[0].release()
    reservations[0].release()
    reservations[0].receive(50)  # bytes after the body do not count
    assert limiter.num_bytes == 400
    limiter.open("a").announce(100)


def test_chunked_body_bytes_are_counted():
    limiter = BodyLimiter(limits_of())
    reservation = limiter.open("a")
    reservation.receive(60)
    reservation.receive(60)
    assert limiter.num_bytes == 120
    with pytest.raises(Refused):
        reservation.receive(100)
    reservation.release()
    assert limiter.num_bytes == 0
    assert limiter._by_client == {}
    announced = limiter.open("a")
    announced.announce(100)
    announced.receive(70)
    announced.receive(30)
    assert limiter.num_bytes == 100


def test_client_over_byte_limit_is_rejected_others_served():
    keys = ["one", "two"]
    options = {
        "max_request_bytes": 1000,
        "max_client_bytes_in_flight": 1500,
        "max_bytes_in_flight": 9000,
    }
    with Served(api_key=keys, **options) as served, contextlib.ExitStack() as stack:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one\r\n"
            "content-length: 1000\r\n\r\n{"
        )
        waiting = stack.enter_context(served.connect())
        waiting.sendall(head.encode())
        until(lambda: served.server.app.guard._body_limiter.num_bytes == 1000)

        def send(key):
            body = {"prompt": "x" * 600, "max_tokens": 1}
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(
                f"{served.server.url}/v1/completions",
                json=body,
                headers=headers,
                timeout=TIMEOUT_S,
            )

        refused = send("one")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert send("two").status_code == 200
        waiting.close()
        until(lambda: served.server.app.guard._body_limiter.num_bytes == 0)
        assert send("one").status_code == 200


def test_body_bytes_are_released_after_submission():
    with Served() as served, contextlib.ExitStack() as stack:
        served.engine.gate.clear()
        busy(served, stack, 3)
        assert served.server.app.guard._body_limiter.num_bytes == 0
        open_gate(served)


# --- client names


def name_of(peer, headers=(), keys=("one", "two")):
    scope: Scope = {"client": peer, "headers": list(headers), "state": {}}
    name = Guard(None, limits_of(), api_keys=keys)._name(scope)
    assert scope["state"]["client_name"] == name
    return name


def test_client_name_is_api_key_or_address():
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


def owner_of(peer, headers=(), **settings):
    scope: Scope = {"client": peer, "headers": list(headers), "state": {}}
    Guard(None, limits_of(), **settings)._name(scope)
    return scope["state"]["owner"]


def test_owner_is_api_key_or_tenant_or_address():
    one, two = ([(b"authorization", b"Bearer " + key)] for key in (b"one", b"two"))
    here = ("10.0.0.1", 1)
    there = ("10.0.0.2", 2)
    keys = ["one", "two"]
    assert owner_of(here, one, api_keys=keys) == owner_of(there, one, api_keys=["one"])
    assert owner_of(here, one, api_keys=keys) != owner_of(here, two, api_keys=keys)
    assert b"one" not in owner_of(here, one, api_keys=keys).encode()
    assert owner_of(here) == "10.0.0.1"
    tenants = [[(b"x-tenant", name), *one] for name in (b"a", b"b")]
    by_tenant = [owner_of(here, each, tenant_header="X-Tenant") for each in tenants]
    assert by_tenant[0] == owner_of(there, tenants[0], tenant_header="X-Tenant") != by_tenant[1]
    assert owner_of(here, tenants[0]) == "10.0.0.1"  # no header is trusted without the option
    by_key = [owner_of(here, each, tenant_header="X-Tenant", api_keys=["one"]) for each in tenants]
    assert by_key[0] == by_key[1] == owner_of(here, one, api_keys=["one"])


def test_client_name_reaches_engine():
    with Served() as served:
        served.complete()
        served.get("/v1/models")
        assert served.engine.options[0]["client"] == "127.0.0.1"
        body = {"messages": [{"role": "user", "content": "hello"}]}
        httpx.post(
            f"{served.server.url}/v1/chat/completions", content=json.dumps(body), timeout=TIMEOUT_S
        )
        assert [options["client"] for options in served.engine.options] == ["127.0.0.1"] * 2


# --- a thousand at once


def test_burst_of_requests_starts_a_few_per_loop_iteration():
    async def storm():
        throttle = StartThrottle()
        begun = []
        largest = 0
        last = 0

        async def one(number):
            await throttle.enter()
            begun.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(1000)]
        for task in tasks[100:200]:
            task.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            largest = max(largest, len(begun) - last)
            last = len(begun)
        assert begun == [*range(100), *range(200, 1000)]
        assert largest <= 2 * MAX_STARTS
        await one(1000)
        return begun

    assert len(asyncio.run(storm())) == 901
