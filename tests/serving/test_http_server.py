"""The server around the routes: keys, sizes, errors, leaving clients."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.server import HttpServer
from core.api import ConfigError, EngineError
from core.config import EngineConfig
from core.testing.echo_engine import EchoEngine


class Group:
    def __init__(self, *routes):
        self._routes = routes

    def routes(self):
        return self._routes


async def _fine(request):
    return PlainTextResponse("fine")


async def _broken(request):
    raise ZeroDivisionError("secret inside")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/tokenize", "/metrics", "/version", "/nowhere"])
def test_every_path_but_probes_needs_the_key(make_api, path):
    reply = make_api(api_key=["one", "two"]).get(path)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes_need_no_key(make_api, path):
    assert make_api(api_key=["one"]).get(path).status_code == 200


@pytest.mark.parametrize("header", ["Bearer two", "bearer one"])
def test_any_of_the_keys_opens(make_api, header):
    assert make_api(api_key=["one", "two"]).get("/v1/models", headers={"Authorization": header}).status_code == 200


@pytest.mark.parametrize("header", ["Bearer three", "Bearer", "Basic one", "one", "Bearer one two"])
def test_any_other_key_does_not(make_api, header):
    assert make_api(api_key=["one"]).get("/v1/models", headers={"Authorization": header}).status_code == 401


def test_an_empty_key_stops_start_up(make_api):
    with pytest.raises(ConfigError, match="--api-key is empty"):
        make_api(api_key=[""])


def test_body_over_the_limit_is_refused(make_api):
    reply = make_api(max_request_bytes=100).complete("x" * 200)
    assert reply.status_code == 413
    assert "100 bytes" in reply.json()["error"]["message"]


def test_limit_counts_what_comes_not_what_is_announced(make_api):
    async def endless():
        for _ in range(100):
            yield b" " * 50

    reply = make_api(max_request_bytes=1000).call(
        "POST", "/v1/completions", content=endless(), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 413


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)])
def test_errors_of_routing_have_the_same_form(api, method, path, status):
    reply = api.call(method, path)
    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_unforeseen_error_is_logged_and_tells_nothing_of_its_inside(make_api, caplog):
    api = make_api()
    api.server.app = EngineApp({"g": Group(Route("/broken", _broken))}, {})
    with caplog.at_level(logging.ERROR):
        reply = api.get("/broken")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "secret inside" in caplog.text


def test_fastapi_routes_work(make_api):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/double/{number}")
    def double(number: int):
        return {"twice": 2 * number}

    api = make_api()
    api.server.app = EngineApp({"g": Group(*router.routes)}, {})
    assert api.get("/double/4").json() == {"twice": 8}
    bad = api.get("/double/four")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "number")


def test_two_groups_on_one_path_stop_start_up_naming_both():
    groups = {"first": Group(Route("/x", _fine)), "second": Group(Route("/x", _fine))}
    with pytest.raises(ConfigError, match=r"'first' and 'second' both serve GET /x"):
        EngineApp(groups, {})


def test_dead_engine_is_unavailable(api):
    api.engine.dead = True
    reply = api.get("/health")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")


class Full(EngineError):
    retry_after_s = 1


def test_full_queue_asks_to_come_again(api, monkeypatch):
    def generate(*args, **kwargs):
        raise Full("500 requests wait already")

    monkeypatch.setattr(api.engine, "generate", generate)
    reply = api.complete("a")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["code"] == "overloaded"


def test_request_ids_come_back_when_asked(make_api):
    api = make_api(enable_request_id_headers=True)
    assert api.get("/health", headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    assert len(api.get("/health").headers["x-request-id"]) == 32


def test_origins_are_allowed_only_when_listed(api, make_api):
    asked = {"Origin": "http://a.example"}
    assert "access-control-allow-origin" not in api.get("/health", headers=asked).headers
    allowed = make_api(allowed_origins=["http://a.example"]).get("/health", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "http://a.example"


def test_draining_server_refuses_new_requests_but_answers_probes(api):
    api.server.app.guard.draining = True
    reply = api.complete("a")
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_client_that_leaves_aborts_its_requests(api, stream, started):
    """The client goes away before or after the first tokens; every sequence it asked for is closed."""
    body = json.dumps({"prompt": ["hello", "there"], "stream": stream}).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "scheme": "http",
    }

    async def leave():
        gone = asyncio.Event()
        sent = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if started and message.get("body"):
                api.engine.gate.clear()
                gone.set()

        if not (started and stream):
            api.engine.gate.clear()
        task = asyncio.ensure_future(api.server.app(scope, receive, send))
        if not (started and stream):
            while len(api.engine.sampling) < 2:
                await asyncio.sleep(0)
            gone.set()
        await asyncio.wait_for(task, 5)

    asyncio.run(leave())
    assert len(api.engine.aborted) == 2


def test_port_in_use_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = EngineConfig(options={"port": port})
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            HttpServer.check(config)  # before a model is loaded
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            HttpServer(EchoEngine(config), config, []).run()


def test_signal_ends_the_server_cleanly_after_one_ready_line(capsys):
    config = EngineConfig(options={"port": 0})
    server = HttpServer(EchoEngine(config), config, {"stop": Group(Route("/x", _fine))})
    before = signal.getsignal(signal.SIGTERM)

    class Stop:
        """A lifespan that asks the process to end as soon as the server is up."""

        async def __call__(self, scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.complete"})
            asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGTERM)
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    guard = server.app.guard
    guard._app = Stop()
    assert server.run() == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().out.startswith("Serving echo on http://127.0.0.1:")
