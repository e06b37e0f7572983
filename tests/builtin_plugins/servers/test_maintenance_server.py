"""The placeholder server during a restart, over sockets, with and without TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from builtin_plugins.servers.http.maintenance_server import answer
from tests.timeouts import TIMEOUT_S

CODE = """
import json, sys
from builtin_plugins.servers.http.maintenance_server import run
assert not {"uvicorn", "fastapi", "torch"} & set(sys.modules)
run(json.loads(sys.argv[1]), {"listener": [int(sys.argv[2])]}, float(sys.argv[3]))
"""


@contextmanager
def maintenance_server(
    back_in_s: float = 3.0, **options: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = str(listener.fileno())
        back_s = str(time.monotonic() + back_in_s)
        command = [sys.executable, "-c", CODE, json.dumps(options), number, back_s]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield listener.getsockname()[1], process
        finally:
            process.kill()
            process.wait()


def test_requests_get_retry_after_and_liveness_probes_200() -> None:
    with (
        maintenance_server(root_path="/here") as (port, process),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client,
    ):
        for path in ("/livez", "/here/livez", "/livez?verbose=1"):
            assert client.get(path).json() == {"status": "alive"}
        refused = client.post("/v1/completions", content=b"x" * 3_000_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert client.get("/readyz").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_invalid_and_silent_clients_do_not_block_others() -> None:
    with (
        maintenance_server() as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client,
    ):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        with socket.create_connection(("127.0.0.1", port)) as odd:
            odd.sendall(b"\0" * 70_000)
            assert odd.recv(100).startswith(b"HTTP/1.1 503 ")
        assert client.get("/livez").status_code == 200
        for connection in silent:
            connection.close()


@pytest.mark.parametrize(
    ("wait_s", "retry_after"),
    [(-3.0, "1"), (0.2, "1"), (2.1, "3"), (1e6, "60"), (float("inf"), "60")],
)
def test_retry_after_is_whole_seconds_within_bounds(wait_s: float, retry_after: str) -> None:
    assert f"retry-after: {retry_after}\r\n".encode() in answer(False, wait_s)


def test_maintenance_server_uses_tls_options(tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    key = tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    try:
        subprocess.run(
            [*command, "-keyout", key, "-out", certificate], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("no openssl")
    options = {"ssl_certfile": os.fspath(certificate), "ssl_keyfile": os.fspath(key)}
    with maintenance_server(**options) as (port, _):
        refused = httpx.get(
            f"https://127.0.0.1:{port}/v1/models", verify=_trusting(), timeout=TIMEOUT_S
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
