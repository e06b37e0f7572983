"""`engine explain`, called in this process against a server that answers as the engine's does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from core.cli.main import main

LINES = ["cmpl-1 is waiting: it is the next", "cmpl-1: 0.100 s in the queue"]


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = parse_qs(url.query).get("request_id", [""])[0]
        keyed = self.headers["Authorization"] == "Bearer sesame"
        if not keyed:
            self.answer(401, {"error": {"message": "no valid API key.", "code": "invalid_api_key"}})
        elif url.path != "/explain" or name == "off":
            self.answer(404, {"error": {"message": "Not Found", "code": "not_found"}})
        elif name != "cmpl-1&x":
            self.answer(404, {"error": {"message": "nothing is known of it", "code": "not_found"}})
        else:
            self.answer(200, {"request_id": name, "lines": LINES, "sequences": []})

    def answer(self, status: int, value: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ENGINE_API_KEY", "sesame")
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_explain_prints_the_servers_answer(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cmpl-1&x", "--url", f"{url}/v1"]) == 0
    assert capsys.readouterr().out.splitlines() == LINES
    assert main(["explain", "cmpl-1&x", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == LINES


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("other", "sesame", "nothing is known of it"),
        ("off", "sesame", "start it with --enable-operator-routes"),
        ("other", "wrong", "no valid API key"),
    ],
)
def test_explain_reports_server_errors(
    url: str, name: str, key: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name, "--url", url, "--api-key", key]) == 1
    assert message in capsys.readouterr().err


def test_unreachable_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "x", "--url", "http://127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["explain", "x", "--url", "file:///etc/passwd"]) == 2
