"""Limits of clients, and shutdown of the server, over a socket."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import weakref

import httpx
import pytest
from starlette.routing import Route

from builtin_plugins.metric_sinks.prometheus.memory import resident_bytes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.probes.routes import ProbeRoutes
from builtin_plugins.servers.http import limits
from builtin_plugins.servers.http import server as server_module
from builtin_plugins.servers.http.app import Templates
from builtin_plugins.servers.http.server import HttpServer, _hide_ids
from core.api import ConfigError
from core.config import EngineConfig
from core.testing.echo_engine import EchoEngine
from tests.timeouts import TIMEOUT_S


class Served:
    """A server in a thread of this process, over an engine without a model."""

    def __init__(self, **options):
        self.config = EngineConfig(
            options={"port": 0, "disable_uvicorn_access_log": True, **options}
        )
        self.engine = EchoEngine(self.config, max_model_len=50_000)
        groups = [make(self.engine, self.config) for make in (OpenAIRoutes, ProbeRoutes)]
        self.server = HttpServer(self.engine, self.config, groups)
        self.status = None
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        self.status = self.server.run()

    def __enter__(self):
        self._thread.start()
        until(lambda: self.server._server is not None and self.server._server.started)
        return self

    def __exit__(self, *error):
        self.engine.gate.set()
        self.server.stop()
        self.server.stop()
        self.join()

    def join(self):
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.status

    @property
    def port(self):
        return int(self.server.url.rpartition(":")[2])

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
        return contextlib.closing(connection)

    def get(self, path, **more):
        return httpx.get(f"{self.server.url}{path}", timeout=TIMEOUT_S, **more)

    def complete(self, prompt="hello", **fields):
        return httpx.post(
            f"{self.server.url}/v1/completions",
            json={"prompt": prompt, **fields},
            timeout=TIMEOUT_S,
        )


def until(true):
    """Wait until a condition is true."""
    give_up = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def post(body, length=None):
    """Return the bytes of a request."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {length or len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


def read_answer(connection):
    """Return status, headers and body of an answer that ends with the connection."""
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)["error"]


def test_stalled_reader_is_disconnected_and_aborted():
    with Served(stream_stall_timeout=0.5) as served, served.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            post(
                json.dumps({"prompt": "x" * 40_000, "max_tokens": 40_000, "stream": True}).encode()
            )
        )
        until(lambda: served.engine.sampling)
        until(lambda: served.engine.aborted)
        assert served.complete().json()["choices"][0]["text"] == "hello"


def test_stalled_reader_buffer_is_bounded():
    with Served(stream_stall_timeout=30) as served, contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(served.connect())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                post(
                    json.dumps(
                        {"prompt": "x" * 40_000, "max_tokens": 40_000, "stream": True}
                    ).encode()
                )
            )
        state = served.server._server.server_state
        until(
            lambda: (
                sum(c.flow is not None and c.flow.write_paused for c in list(state.connections))
                == 8
            )
        )
        held = [connection.transport.get_write_buffer_size() for connection in state.connections]
        assert max(held) < 128 * 1024
        assert not served.engine.aborted


@pytest.mark.slow
def test_slow_reader_gets_whole_stream():
    # TCP itself probes a reader with a small window at growing intervals; a busy machine makes them
    # seconds.
    with Served(stream_stall_timeout=6) as served, served.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        connection.sendall(
            post(json.dumps({"prompt": "x" * 2500, "max_tokens": 2500, "stream": True}).encode())
        )
        data = b""
        while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            chunk = connection.recv(1024)
            assert chunk, data[-300:]
            data += chunk
            time.sleep(0.01)
        assert data.count(b"data: ") == 2501
        assert not served.engine.aborted


def test_missing_body_times_out():
    with Served(request_read_timeout=0.5) as served, served.connect() as connection:
        connection.sendall(post(b'{"prompt"', length=100))
        status, headers, error = read_answer(connection)
        assert (status, headers["connection"], error["code"]) == (408, "close", "request_timeout")
        assert "--request-read-timeout" in error["message"]


def test_slow_body_times_out():
    with Served(request_read_timeout=0.5) as served, served.connect() as connection:
        connection.sendall(post(b"", length=100))
        with contextlib.suppress(ConnectionError):  # it was cut meanwhile
            for _ in range(10):
                connection.sendall(b" ")
                time.sleep(0.1)
        with contextlib.suppress(ConnectionError):
            assert read_answer(connection)[0] == 408


@pytest.mark.slow
@pytest.mark.parametrize("framing", [f"content-length: {1 << 30}", "transfer-encoding: chunked"])
def test_gibibyte_body_is_rejected_without_buffering(framing):
    """Memory grows by less than twice the limit while the client sends the whole body."""
    part = b" " * (1 << 20)
    sent = part if framing.startswith("content") else b"%x\r\n%b\r\n" % (len(part), part)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}\r\n\r\n"
    with Served() as served, served.connect() as connection:
        served.complete()
        before = resident_bytes()
        peak = 0
        connection.sendall(head.encode())
        with contextlib.suppress(ConnectionError):  # it need not be read to its end
            for _ in range(1024):
                connection.sendall(sent)
                peak = max(peak, resident_bytes())
        assert peak - before < 2 * served.server.app.limits.request_bytes
        with contextlib.suppress(ConnectionError):  # what was not read may take the answer with it
            assert read_answer(connection)[0] == 413
        assert served.complete().json()["choices"][0]["text"] == "hello"


def test_unfinished_head_times_out():
    with Served(request_read_timeout=0.5) as served, served.connect() as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost")
        assert read_answer(connection)[0] == 408


def test_idle_connection_is_closed():
    with Served(request_read_timeout=0.5) as served, served.connect() as connection:
        until(lambda: connection.recv(65536) == b"" or True)


def test_answer_may_outlast_receive_timeout():
    with Served(request_read_timeout=0.3) as served:
        served.engine.gate.clear()
        threading.Timer(
            2.5,
            lambda: (
                served.server._server.servers[0]
                .get_loop()
                .call_soon_threadsafe(served.engine.gate.set)
            ),
        ).start()
        assert served.complete().json()["choices"][0]["text"] == "hello"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 30_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"x-many: 1\r\n" * 300 + b"\r\n",
        b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-endless: " + b"a" * 300_000,
    ],
    ids=["one long header", "many headers", "a long path", "no end"],
)
def test_oversized_head_is_rejected(head):
    with Served(h11_max_incomplete_event_size=20_000) as served, served.connect() as connection:
        connection.sendall(head)
        status, _, error = read_answer(connection)
        assert (status, error["code"]) == (431, "head_too_large")


def busy(served, stack, count):
    """Return connections with one request each, unanswered until the engine's gate opens."""
    made = []
    for _ in range(count):
        connection = stack.enter_context(served.connect())
        connection.sendall(post(b'{"prompt": "hello", "max_tokens": 5}'))
        made.append(connection)
    until(lambda: len(served.engine.sampling) >= count)
    return made


def test_connections_over_limit_get_503_except_probes():
    with Served(max_connections=2) as served, contextlib.ExitStack() as stack:
        served.engine.gate.clear()
        first, _ = busy(served, stack, 2)
        refused = served.complete()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "--max-connections" in refused.json()["error"]["message"]
        assert served.get("/readyz").status_code == 200
        first.close()
        until(lambda: len(served.server._server.server_state.connections) < 2)
        open_gate(served)
        assert served.complete().status_code == 200


def open_gate(served):
    served.server._server.servers[0].get_loop().call_soon_threadsafe(served.engine.gate.set)


def test_connections_far_over_limit_are_dropped(monkeypatch):
    monkeypatch.setattr(limits, "SPARE_CONNECTIONS", 0)
    with Served(max_connections=1) as served, contextlib.ExitStack() as stack:
        served.engine.gate.clear()
        busy(served, stack, 1)
        with served.connect() as connection:
            status, headers, _ = read_answer(connection)
            assert (status, headers["retry-after"]) == (503, "1")
        open_gate(served)


def test_server_ends_when_engine_dies():
    with Served() as served:
        served.engine.status = "dead"
        assert served.join() == 1


@pytest.mark.parametrize("batching_window_s", [0.0, 0.3])
def test_requests_over_shutdown_timeout_end_with_error(batching_window_s):
    with Served(shutdown_timeout=batching_window_s) as served:
        body = {"prompt": "x" * 10_000, "max_tokens": 10_000, "stream": True}
        with httpx.stream(
            "POST", f"{served.server.url}/v1/completions", json=body, timeout=TIMEOUT_S
        ) as reply:
            lines = reply.iter_lines()
            next(lines)
            served.engine.gate.clear()
            served.server.stop()
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "draining"
        assert rest[-1] == "data: [DONE]"
        assert served.join() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_connections": 0}, "--max-connections"),
        ({"timeout_keep_alive": -1.0}, "--timeout-keep-alive"),
        ({"max_client_bytes_in_flight": 1000}, "--max-client-bytes-in-flight"),
        ({"max_bytes_in_flight": 1000}, "--max-bytes-in-flight"),
        ({"max_bytes_in_flight": 0}, "--max-bytes-in-flight"),
        ({"stream_stall_timeout": 0.0}, "--stream-stall-timeout"),
        ({"request_read_timeout": -1.0}, "--request-read-timeout"),
        ({"h11_max_header_count": 1}, "--h11-max-header-count"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"max_request_bytes": 0}, "--max-request-bytes"),
        ({"ssl_keyfile": "key.pem"}, "--ssl-certfile"),
        ({"ssl_certfile": "nowhere.pem"}, "nowhere.pem"),
        ({"ssl_certfile": "x.pem", "ssl_cert_reqs": 2}, "--ssl-ca-certs"),
        ({"ssl_certfile": "x.pem", "ssl_cert_reqs": 3}, "--ssl-cert-reqs"),
        ({"ssl_ciphers": "AES256"}, "--ssl-certfile"),
        ({"enable_ssl_refresh": True}, "--ssl-certfile"),
        ({"tenant_header": "x-tenant", "api_key": ["one"]}, "--tenant-header"),
        ({"uds": "/nowhere/at/all.sock"}, "--uds"),
    ],
)
def test_impossible_limit_is_config_error(options, message):
    with pytest.raises(ConfigError, match=message):
        HttpServer.check(EngineConfig(options={"port": 0, **options}))


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is not None, reason="uvloop is installed")
def test_missing_event_loop_is_config_error():
    with pytest.raises(ConfigError, match=r"--event-loop uvloop .* core\[uvloop\]"):
        HttpServer.check(EngineConfig(options={"port": 0, "event_loop": "uvloop"}))


def test_unix_socket_serves_and_is_removed(tmp_path):
    path = tmp_path / "engine.sock"
    with Served(uds=str(path)) as served:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://engine"
        ) as client:
            assert client.get("/v1/models").status_code == 200
        with pytest.raises(ConfigError, match="another server listens there"):
            HttpServer.check(served.config)
    assert not path.exists()


def test_stale_unix_socket_is_replaced(tmp_path):
    path = tmp_path / "engine.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    HttpServer.check(EngineConfig(options={"uds": str(path)}))


def make_certificate(folder, name):
    """Files of a self-signed certificate for localhost and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key = folder / "key.pem"
    certificate = folder / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}


def test_https_reloads_changed_certificate(tmp_path, caplog):
    files = make_certificate(tmp_path, "first")
    with caplog.at_level(logging.INFO), Served(**files, enable_ssl_refresh=True) as served:
        assert served.server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=files["ssl_certfile"])
        assert served.get("/v1/models", verify=trust).status_code == 200
        make_certificate(tmp_path, "second")
        until(lambda: "new certificates are in use" in caplog.text)
        with pytest.raises(httpx.ConnectError):
            served.get("/v1/models", verify=trust)
        trust = ssl.create_default_context(cafile=files["ssl_certfile"])
        assert served.get("/v1/models", verify=trust).status_code == 200


def test_probes_are_not_access_logged(caplog):
    with caplog.at_level(logging.INFO), Served(disable_uvicorn_access_log=False) as served:
        for path in ("/livez", "/readyz", "/health", "/v1/models", "/nowhere"):
            served.get(path)
        served.engine.status = "stalled"
        served.get("/readyz?why")
        lines = [
            record.getMessage() for record in caplog.records if record.name == "uvicorn.access"
        ]
    paths = [line.split('"')[1].split()[1] for line in lines]
    assert paths == ["/v1/models", "/nowhere", "/readyz?why"]


def test_path_parameters_are_not_access_logged(caplog):
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s "%s %s" %s %d', (), None)
    template_of = Templates([Route("/v1/responses/{response_id}/input_items", print)])
    for path, logged in (
        ("/v1/responses/resp_1/input_items?after=msg_1", "/v1/responses/{response_id}/input_items"),
        ("/nowhere?a=b", "/nowhere?a=b"),
    ):
        record.args = ("127.0.0.1:1", "GET", path, "1.1", 200)
        assert _hide_ids(template_of, record)
        assert record.args == ("127.0.0.1:1", "GET", logged, "1.1", 200)


def test_freed_memory_returns_to_the_system_periodically(monkeypatch):
    trimmed = threading.Event()
    monkeypatch.setattr(server_module, "WATCH_S", 0.01)
    monkeypatch.setattr(server_module, "TRIM_S", 0.0)
    monkeypatch.setattr(server_module, "trim_memory", trimmed.set)
    with Served():
        assert trimmed.wait(TIMEOUT_S)


def test_old_cycles_are_collected_periodically(monkeypatch):
    class Cycle:
        pass

    monkeypatch.setattr(server_module, "WATCH_S", 0.01)
    monkeypatch.setattr(server_module, "TRIM_S", 0.0)
    cycle = Cycle()
    cycle.itself = cycle
    found = weakref.ref(cycle)
    gc.collect()  # now it is in the oldest generation
    with Served():
        del cycle
        until(lambda: found() is None)


def test_requests_leave_no_cycle_of_their_scope():
    with Served() as served:
        gc.disable()
        try:
            for _ in range(5):
                assert served.get("/health").status_code == 200
                assert served.complete().status_code == 200
                assert served.complete(stream=True).status_code == 200
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            scopes = [found for found in gc.garbage if isinstance(found, dict) and "asgi" in found]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert scopes == []


def test_trimming_returns_pages_between_blocks_in_use():
    code = """
from builtin_plugins.metric_sinks.prometheus.memory import resident_bytes
from builtin_plugins.servers.http.server import trim_memory
blocks = [bytes([1]) * 8192 for _ in range(8192)]
in_use = blocks[::100]
blocks = None
before = resident_bytes()
trim_memory()
print(before - resident_bytes())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(found.stdout) > 32 * 2**20
