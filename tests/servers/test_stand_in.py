"""What clients are told while the process that serves is started again, over sockets, with TLS and
without.
"""

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
from patience import PATIENCE_S

from builtin_plugins.servers.http.stand_in import answer

CODE = """
import json, sys
from builtin_plugins.servers.http.stand_in import run
assert not {"uvicorn", "fastapi", "torch"} & set(sys.modules)
run(json.loads(sys.argv[1]), {"listener": [int(sys.argv[2])]}, float(sys.argv[3]))
"""


@contextmanager
def standing_in(
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


def test_requests_are_told_when_to_come_again_and_probes_that_all_is_well() -> None:
    with (
        standing_in(root_path="/here") as (port, process),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client,
    ):
        for path in ("/livez", "/here/livez", "/livez?verbose=1"):
            assert client.get(path).json() == {"status": "alive"}
        refused = client.post("/v1/completions", content=b"x" * 3_000_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert client.get("/readyz").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_what_is_no_http_and_who_sends_nothing_harms_nobody() -> None:
    with (
        standing_in() as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client,
    ):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        with socket.create_connection(("127.0.0.1", port)) as odd:
            odd.sendall(b"\0" * 70_000)
            assert odd.recv(100).startswith(b"HTTP/1.1 503 ")
        assert client.get("/livez").status_code == 200
        for connection in silent:
            connection.close()


@pytest.mark.parametrize(
    ("wait_s", "said"), [(-3.0, "1"), (0.2, "1"), (2.1, "3"), (1e6, "60"), (float("inf"), "60")]
)
def test_the_wait_that_is_advised_is_a_whole_number_within_reason(wait_s: float, said: str) -> None:
    assert f"retry-after: {said}\r\n".encode() in answer(False, wait_s)


def test_it_speaks_tls_as_the_server_does(tmp_path: Path) -> None:
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
    with standing_in(**options) as (port, _):
        refused = httpx.get(
            f"https://127.0.0.1:{port}/v1/models", verify=_trusting(), timeout=PATIENCE_S
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
