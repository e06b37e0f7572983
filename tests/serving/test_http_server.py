"""The server around the routes: keys, sizes, errors, leaving clients."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket

import pytest
from patience import PATIENCE_S
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.errors import describe
from builtin_plugins.servers.http.server import HttpServer
from core.api import ConfigError, HttpStats, PluginError, QueueFull, RequestTimeout
from core.config import EngineConfig
from core.engine.sinks import Guarded
from core.plugin import load_plan, make_plan
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


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/completions", "/tokenize", "/metrics", "/version", "/nowhere"]
)
def test_every_path_but_probes_needs_the_key(make_api, path):
    reply = make_api(api_key=["one", "two"]).get(path)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/ping"])
def test_probes_need_no_key(make_api, path):
    assert make_api(api_key=["one"]).get(path).status_code == 200


@pytest.mark.parametrize("header", ["Bearer two", "bearer one"])
def test_any_of_the_keys_opens(make_api, header):
    assert (
        make_api(api_key=["one", "two"])
        .get("/v1/models", headers={"Authorization": header})
        .status_code
        == 200
    )


@pytest.mark.parametrize("header", ["Bearer three", "Bearer", "Basic one", "one", "Bearer one two"])
def test_any_other_key_does_not(make_api, header):
    assert (
        make_api(api_key=["one"]).get("/v1/models", headers={"Authorization": header}).status_code
        == 401
    )


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


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)]
)
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
    api.engine.status = "dead"
    for path in ("/health", "/readyz", "/ping"):
        reply = api.get(path)
        assert (reply.status_code, reply.json()["status"], reply.headers["retry-after"]) == (
            503,
            "dead",
            "1",
        )
    assert api.get("/livez").status_code == 200


@pytest.mark.parametrize("status", ["starting", "stalled", "restarting"])
def test_an_engine_that_cannot_compute_now_is_not_ready(api, status):
    api.engine.status = status
    reply = api.get("/readyz")
    assert (reply.status_code, reply.json()["status"], reply.json()["reason"]) == (
        503,
        status,
        "made to",
    )


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueueFull("500 requests wait already"), 503, "overloaded"),
        (RequestTimeout("took 3 s"), 504, "timeout"),
    ],
)
def test_errors_of_the_engine_say_what_to_do(api, monkeypatch, error, status, code):
    def generate(*args, **kwargs):
        raise error

    monkeypatch.setattr(api.engine, "generate", generate)
    reply = api.complete("a")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == ("1" if status == 503 else None)


def test_a_timeout_in_a_stream_is_its_last_event(api, monkeypatch, read_events):
    original = api.engine.generate

    async def generate(*args, **kwargs):
        async for output in original(*args, **kwargs):
            yield output
            raise RequestTimeout("took 3 s")

    monkeypatch.setattr(api.engine, "generate", generate)
    *_, end = read_events(api.complete("abc", stream=True))
    assert end["error"]["code"] == "timeout"


def test_request_ids_come_back_when_asked(make_api):
    api = make_api(enable_request_id_headers=True)
    assert api.get("/health", headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    assert len(api.get("/health").headers["x-request-id"]) == 32


def test_origins_are_allowed_only_when_listed(api, make_api):
    asked = {"Origin": "http://a.example"}
    assert "access-control-allow-origin" not in api.get("/health", headers=asked).headers
    allowed = make_api(allowed_origins=["http://a.example"]).get("/health", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "http://a.example"
    assert "access-control-allow-credentials" not in allowed.headers


def test_what_origins_may_do_is_configured(make_api):
    api = make_api(
        allowed_origins=["http://a.example"],
        allowed_methods=["POST"],
        allowed_headers=["x-mine"],
        allow_credentials=True,
    )
    asked = {"Origin": "http://a.example", "Access-Control-Request-Headers": "x-mine"}
    good = api.call(
        "OPTIONS", "/v1/completions", headers={**asked, "Access-Control-Request-Method": "POST"}
    )
    assert good.headers["access-control-allow-credentials"] == "true"
    assert "x-mine" in good.headers["access-control-allow-headers"]
    bad = api.call(
        "OPTIONS", "/v1/completions", headers={**asked, "Access-Control-Request-Method": "DELETE"}
    )
    assert bad.status_code == 400


def test_draining_server_refuses_new_requests_but_answers_probes(api):
    api.server.app.guard.activity.draining = True
    reply = api.complete("a")
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"
    assert api.get("/health").status_code == 200
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["status"], ready.headers["retry-after"]) == (
        503,
        "draining",
        "1",
    )
    api.engine.status = "dead"
    assert api.get("/health").json()["status"] == "dead"


class Sink:
    """Keeps what it is told of HTTP requests."""

    def __init__(self):
        self.seen: list[HttpStats] = []

    def http(self, stats):
        self.seen.append(stats)


def test_http_requests_are_measured_by_template_and_status(make_api):
    api = make_api(api_key=["one"])
    sink = Sink()
    api.engine.sinks.guarded.append(Guarded("sink", "a test", sink))
    key = {"Authorization": "Bearer one"}
    api.get("/v1/models/some/name", headers=key)
    api.get("/v1/models", headers=key)
    api.get("/v1/models")
    api.get("/a/path/nobody/serves", headers=key)
    api.get("/livez")
    assert [(stats.path, stats.method, stats.status) for stats in sink.seen] == [
        ("/v1/models/{model:path}", "GET", 404),
        ("/v1/models", "GET", 200),
        ("/v1/models", "GET", 401),
        ("", "GET", 404),
        ("/livez", "GET", 200),
    ]
    assert all(stats.duration_s > 0 for stats in sink.seen)


def test_load_counts_open_requests(make_api):
    assert make_api(enable_server_load_tracking=True).get("/load").json() == {"server_load": 0}
    assert make_api().get("/load").status_code == 404


def test_every_route_of_every_loaded_group_is_guarded_or_a_probe(api):
    """The audit: without a key, nothing but the probes answers."""
    registry = load_plan(make_plan([]))
    config = EngineConfig(options={"api_key": ["one"], "enable_server_load_tracking": True})
    groups = {
        r.entry.name: registry.load(r)(api.engine, config) for r in registry.entries("routes")
    }
    api.server = HttpServer(api.engine, config, groups)
    answered = set()
    for route in api.server.app.routes:
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            reply = api.call(method, route.path.replace("{model:path}", "x"))
            if reply.status_code != 401:
                answered.add(route.path)
    assert answered == {"/livez", "/readyz", "/health", "/ping"}


def test_a_mounted_application_and_a_websocket_need_the_key(api):
    routes = [Mount("/mounted", app=PlainTextResponse("inside")), WebSocketRoute("/socket", _fine)]
    api.server.app = EngineApp({"g": Group(*routes)}, {"api_key": ["one"]})
    assert api.get("/mounted/x").status_code == 401
    assert api.get("/mounted/x", headers={"Authorization": "Bearer one"}).text == "inside"
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/socket",
        "raw_path": b"/socket",
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(api.server.app(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "not allowed"}]


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
        await asyncio.wait_for(task, PATIENCE_S)

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


def test_a_client_learns_which_plugin_failed_and_no_file() -> None:
    error = PluginError(
        "plugin 'mine' (local file /srv/mine.py) failed in hook engine_x: KeyError", "mine"
    )
    answer = describe(error, "id-7")
    assert (answer.status, answer.code) == (500, "plugin_failed")
    assert answer.message == "plugin 'mine' failed in request 'id-7'; the engine's log says more."
