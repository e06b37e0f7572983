"""The HTTP server: API keys, size limits, errors and disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.errors import describe
from builtin_plugins.servers.http.server import HttpServer
from core.api import ConfigError, EngineDead, PluginError, QueueFull, RequestTimeout
from core.api.telemetry import HttpStats
from core.config import EngineConfig
from core.frontend.metrics import SinkHealth
from core.plugin import load_plan, make_plan
from core.testing.echo_engine import EchoEngine
from tests.timeouts import TIMEOUT_S


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
def test_paths_except_probes_need_api_key(make_api, path):
    reply = make_api(api_key=["one", "two"]).get(path)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/ping"])
def test_probes_need_no_api_key(make_api, path):
    assert make_api(api_key=["one"]).get(path).status_code == 200


@pytest.mark.parametrize("header", ["Bearer two", "bearer one"])
def test_any_configured_api_key_is_accepted(make_api, header):
    assert (
        make_api(api_key=["one", "two"])
        .get("/v1/models", headers={"Authorization": header})
        .status_code
        == 200
    )


@pytest.mark.parametrize("header", ["Bearer three", "Bearer", "Basic one", "one", "Bearer one two"])
def test_unknown_api_key_is_rejected(make_api, header):
    assert (
        make_api(api_key=["one"]).get("/v1/models", headers={"Authorization": header}).status_code
        == 401
    )


def test_empty_api_key_is_config_error(make_api):
    with pytest.raises(ConfigError, match="--api-key is empty"):
        make_api(api_key=[""])


def test_body_over_limit_is_rejected(make_api):
    reply = make_api(max_request_bytes=100).complete("x" * 200)
    assert reply.status_code == 413
    assert "100 bytes" in reply.json()["error"]["message"]


def test_body_limit_counts_received_bytes(make_api):
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
def test_routing_errors_have_error_form(api, method, path, status):
    reply = api.call(method, path)
    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_unhandled_error_is_logged_and_not_exposed(make_api, caplog):
    api = make_api()
    api.server.app = EngineApp({"g": Group(Route("/broken", _broken))}, {})
    with caplog.at_level(logging.ERROR):
        reply = api.get("/broken")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "secret inside" in caplog.text


def test_fastapi_routes_are_served(make_api):
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


def test_duplicate_path_error_names_both_groups():
    groups = {"first": Group(Route("/x", _fine)), "second": Group(Route("/x", _fine))}
    with pytest.raises(ConfigError, match=r"'first' and 'second' both serve GET /x"):
        EngineApp(groups, {})


def test_dead_engine_returns_503(api):
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
def test_stalled_engine_is_not_ready(api, status):
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
def test_engine_errors_name_the_action(api, monkeypatch, error, status, code):
    def generate(*args, **kwargs):
        raise error

    monkeypatch.setattr(api.engine, "generate", generate)
    reply = api.complete("a")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == ("1" if status == 503 else None)


def test_stream_timeout_is_last_event(api, monkeypatch, read_events):
    original = api.engine.generate

    async def generate(*args, **kwargs):
        async for output in original(*args, **kwargs):
            yield output
            raise RequestTimeout("took 3 s")

    monkeypatch.setattr(api.engine, "generate", generate)
    *_, end = read_events(api.complete("abc", stream=True))
    assert end["error"]["code"] == "timeout"


def test_request_id_header_is_returned_when_enabled(make_api):
    api = make_api(enable_request_id_headers=True)
    assert api.get("/health", headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    assert len(api.get("/health").headers["x-request-id"]) == 32


def test_cors_allows_only_listed_origins(api, make_api):
    headers = {"Origin": "http://a.example"}
    assert "access-control-allow-origin" not in api.get("/health", headers=headers).headers
    allowed = make_api(allowed_origins=["http://a.example"]).get("/health", headers=headers)
    assert allowed.headers["access-control-allow-origin"] == "http://a.example"
    assert "access-control-allow-credentials" not in allowed.headers


def test_cors_methods_and_headers_are_configured(make_api):
    api = make_api(
        allowed_origins=["http://a.example"],
        allowed_methods=["POST"],
        allowed_headers=["x-mine"],
        allow_credentials=True,
    )
    headers = {"Origin": "http://a.example", "Access-Control-Request-Headers": "x-mine"}
    good = api.call(
        "OPTIONS", "/v1/completions", headers={**headers, "Access-Control-Request-Method": "POST"}
    )
    assert good.headers["access-control-allow-credentials"] == "true"
    assert "x-mine" in good.headers["access-control-allow-headers"]
    bad = api.call(
        "OPTIONS", "/v1/completions", headers={**headers, "Access-Control-Request-Method": "DELETE"}
    )
    assert bad.status_code == 400


def test_draining_server_rejects_requests_and_answers_probes(api):
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
    """Records the statistics of HTTP requests."""

    def __init__(self):
        self.seen: list[HttpStats] = []

    def http(self, stats):
        self.seen.append(stats)


def test_http_metrics_use_path_template_and_status(make_api):
    api = make_api(api_key=["one"])
    sink = Sink()
    api.engine.sinks.entries.append(SinkHealth("sink", "a test", sink))
    key = {"Authorization": "Bearer one"}
    api.get("/v1/models/some/name", headers=key)
    api.get("/v1/models", headers=key)
    api.get("/v1/models")
    api.get("/a/path/without/route", headers=key)
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


def test_every_route_needs_key_or_is_probe(api):
    """Without a key only the probes answer, and the files of the playground, but not its data."""
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
    files = set(groups["playground"].public_paths)
    assert not files & {"/playground/state", "/playground/request"}
    assert answered == {"/livez", "/readyz", "/health", "/ping"} | files


def test_mounted_app_and_websocket_need_api_key(api):
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
def test_client_disconnect_aborts_request(api, stream, started):
    """The client disconnects before or after the first tokens; all its sequences are aborted."""
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
        await asyncio.wait_for(task, TIMEOUT_S)

    asyncio.run(leave())
    assert len(api.engine.aborted) == 2


def test_port_in_use_is_config_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = EngineConfig(options={"port": port})
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            HttpServer.check(config)  # before a model is loaded
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            HttpServer(EchoEngine(config), config, []).run()


def _run_until_signal(server):
    """Run a server that gets SIGTERM as soon as it is up; return its status."""

    class Stop:
        """A lifespan that sends SIGTERM as soon as the server is up."""

        async def __call__(self, scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.complete"})
            asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGTERM)
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    server.app.guard._app = Stop()
    return server.run()


def test_signal_shuts_down_server_after_ready_line(capsys):
    config = EngineConfig(options={"port": 0})
    server = HttpServer(EchoEngine(config), config, {"stop": Group(Route("/x", _fine))})
    before = signal.getsignal(signal.SIGTERM)
    assert _run_until_signal(server) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Serving echo on http://127.0.0.1:")


@pytest.mark.parametrize("uds", [False, True])
def test_address_of_a_page_is_printed_after_the_ready_line(capsys, tmp_path, uds):
    options = {"uds": str(tmp_path / "socket")} if uds else {"port": 0}
    config = EngineConfig(options=options)
    group = Group(Route("/chat", _fine))
    group.page = "/chat"
    server = HttpServer(EchoEngine(config), config, {"page": group})
    assert _run_until_signal(server) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("Serving echo on ")
    assert others == ([] if uds else [f"Chat with it in a browser: {server.url}/chat"])


def test_call_that_dies_with_its_engine_may_be_sent_again() -> None:
    answer = describe(EngineDead("the engine died before it answered; retry the call."))
    assert (answer.status, answer.code) == (503, "engine_dead")
    assert answer.headers == {"Retry-After": "1"}


def test_error_names_plugin_without_file_paths() -> None:
    error = PluginError(
        "plugin 'mine' (local file /srv/mine.py) failed in hook engine_x: KeyError", "mine"
    )
    answer = describe(error, "id-7")
    assert (answer.status, answer.code) == (500, "plugin_failed")
    assert answer.message == "plugin 'mine' failed in request 'id-7'; see the engine log."
