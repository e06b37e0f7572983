"""`engine run-batch`: valid lines get answers, invalid ones errors, in input order."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from builtin_plugins.commands.run_batch.files import MAX_LINE_BYTES, bounded_lines, opened, written
from builtin_plugins.commands.run_batch.lines import AT_ONCE, Batch
from builtin_plugins.commands.run_batch.metrics import metrics_server
from core.cli.main import main
from core.errors import ConfigError, EngineError
from tests.timeouts import TIMEOUT_S

MESSAGES = [{"role": "user", "content": "hello"}]


def line(name: str, url: str = "/v1/completions", **body: Any) -> bytes:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode()


class App:
    """ASGI app that echoes requests after `turns` event loop turns and counts open requests."""

    def __init__(self) -> None:
        self.num_open = 0
        self.max_open = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        body = json.loads((await receive())["body"])
        for _ in range(body.get("turns", 0)):
            await asyncio.sleep(0)
        self.num_open -= 1
        status = body.get("status", 200)
        answer = {"path": scope["path"], **body} if status == 200 else {"error": {"message": "no"}}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def results_of(*lines: bytes) -> tuple[list[Any], App]:
    app = App()
    found = list[Any]()
    tally = asyncio.run(Batch(app).run(lines, lambda result: found.append(json.loads(result))))
    assert tally.answered + tally.failed == len(found)
    assert tally.failed == sum(result["error"] is not None for result in found)
    return found, app


def test_results_keep_the_input_order() -> None:
    found, app = results_of(*(line(str(i), turns=9 - i) for i in range(10)), b"", b"  \n")
    assert [result["custom_id"] for result in found] == [str(i) for i in range(10)]
    assert [result["response"]["status_code"] for result in found] == [200] * 10
    assert [result["response"]["body"]["turns"] for result in found] == list(range(9, -1, -1))
    assert len({result["id"] for result in found}) == 10
    assert app.max_open > 1


def test_open_requests_are_limited() -> None:
    found, app = results_of(
        *(line(str(i), turns=3000 if i == 0 else 1) for i in range(AT_ONCE + 50))
    )
    assert len(found) == AT_ONCE + 50
    assert app.max_open <= AT_ONCE


def test_open_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtin_plugins.commands.run_batch.lines.MAX_BYTES", 1000)
    _, app = results_of(*(line(str(i), text="a" * 600, turns=5) for i in range(5)))
    assert app.max_open == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{", "line 2: "),
        (b"[1]", "line 2: "),
        (b'{"custom_id": "b", "url": "/v1/completions"}', "missing required field `body`"),
        (line("b", "/pause"), "url: '/pause' is none of /classify"),
        (line("b", "http://127.0.0.1/v1/completions"), "url: "),
        (line("b", stream=True), "body.stream: not supported in a batch"),
        (line("b", "/v1/embeddings", input="a", encoding_format="bytes"), "body.encoding_format: "),
        (line("b").replace(b"POST", b"PUT"), "method: must be POST"),
    ],
)
def test_invalid_line_fails_alone(bad: bytes, message: str) -> None:
    (_, failed, after), _ = results_of(line("a"), bad, line("c"))
    assert failed["response"] is None
    assert message in failed["error"]["message"]
    assert failed["custom_id"] == ("b" if b'"b"' in bad else None)
    assert after["response"]["status_code"] == 200


def test_rejected_request_is_in_the_results() -> None:
    (result,), _ = results_of(line("a", status=400))
    assert result["response"]["status_code"] == 400
    assert result["response"]["body"]["error"] == result["error"] == {"message": "no"}


def test_batch_file_is_answered_by_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = tmp_path / "requests.jsonl"
    results = tmp_path / "results.jsonl"
    lines = [
        line("chat", "/v1/chat/completions", messages=MESSAGES, max_tokens=4),
        line("text", prompt="hello", max_tokens=3),
        line("bad", prompt="hello", temperature=-1),
        line("no embeddings", "/v1/embeddings", input="hello"),
    ]
    requests.write_bytes(b"\n".join(lines))
    small = [
        "--max-model-len",
        "256",
        "--num-threads",
        "1",
        "--log-level",
        "error",
        "--api-key",
        "secret",
    ]
    command = [
        "run-batch",
        "scripted:",
        "-i",
        str(requests),
        "-o",
        str(results),
        "--disable-frontend-multiprocessing",
    ]
    assert main([*command, *small]) == 0
    assert "answered 2, failed 2" in capsys.readouterr().out
    chat, text, bad, refused = map(json.loads, results.read_bytes().splitlines())
    assert chat["response"]["body"]["object"] == "chat.completion"
    assert text["response"]["body"]["usage"]["completion_tokens"] == 3
    assert (bad["response"]["status_code"], bad["error"]["param"]) == (400, "temperature")
    assert "it generates text" in refused["error"]["message"]


def test_invalid_files_are_rejected_before_the_model_loads(tmp_path: Path) -> None:
    here = tmp_path / "requests.jsonl"
    here.write_bytes(line("a"))
    with (
        pytest.raises(ConfigError, match=r"--input-file .*nowhere.* cannot be read"),
        opened(str(tmp_path / "nowhere")),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"--output-file .* cannot be written"),
        written(str(tmp_path / "no" / "out")),
    ):
        pass
    assert (
        main(["run-batch", "-i", str(here), "-o", f"{tmp_path}/../{tmp_path.name}/requests.jsonl"])
        != 0
    )
    assert here.read_bytes() == line("a")


def test_line_over_the_limit_ends_the_batch_by_its_number() -> None:
    long = b"x" * MAX_LINE_BYTES
    assert list(bounded_lines(io.BytesIO(b"a\n\nb"), "here")) == [b"a\n", b"\n", b"b"]
    with pytest.raises(ConfigError, match="--input-file here, line 2: got more than 67108864"):
        list(bounded_lines(io.BytesIO(b"a\n" + long + b"x"), "here"))


class Handler(BaseHTTPRequestHandler):
    """Gives the requests, and takes the results at one path."""

    taken: bytes

    def do_GET(self) -> None:
        self._answer(200, line("a", prompt="x"))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).taken = body
        self._answer(200 if self.path == "/results" else 403, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def store() -> Iterator[str]:
    """Serve an address that holds files."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_urls_are_downloaded_and_uploaded(tmp_path: Path) -> None:
    with store() as address:
        with opened(f"{address}/requests") as requests:
            assert list(requests) == [line("a", prompt="x")]
        with written(f"{address}/results", str(tmp_path)) as results:
            results.write(b"done\n")
        assert Handler.taken == b"done\n"
        assert list(tmp_path.iterdir()) == []


def test_failed_upload_keeps_the_results(tmp_path: Path) -> None:
    def put() -> None:
        with store() as address, written(f"{address}/elsewhere", str(tmp_path)) as results:
            results.write(b"done\n")

    with pytest.raises(EngineError, match="cannot store the results: Forbidden; they are in"):
        put()
    (output,) = tmp_path.iterdir()
    assert output.read_bytes() == b"done\n"
    with (
        pytest.raises(EngineError, match="cannot be fetched"),
        opened("http://127.0.0.1:9/requests"),
    ):
        pass


def test_byte_order_mark_of_the_file_is_skipped() -> None:
    found, _ = results_of(b"\xef\xbb\xbf" + line("a"), line("b"))
    assert [result["custom_id"] for result in found] == ["a", "b"]
    assert [result["error"] for result in found] == [None, None]


def scrape(app: Any, port: int, path: str = "/metrics") -> tuple[int, str]:
    """Return status and text of a page of the metrics server."""

    def get(url: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def run() -> tuple[int, str]:
        async with metrics_server(app, "127.0.0.1", port) as url:
            return await asyncio.to_thread(get, url.replace("/metrics", path))

    return asyncio.run(run())


def test_metrics_are_served_and_nothing_else() -> None:
    page = PlainTextResponse("engine_up 1")
    assert scrape(page, 0) == (200, "engine_up 1")
    assert scrape(page, 0, "/v1/models")[0] == 404


def test_used_port_of_the_metrics_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^--port: got {port} on 127\.0\.0\.1"):
            scrape(PlainTextResponse(""), port)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--port", "9000"], "--port: got an address"),
        (["--url", "0.0.0.0"], "--url: got an address"),
        (["--enable-metrics", "--disable-log-stats"], "--enable-metrics: got --disable-log-stats"),
    ],
)
def test_address_without_metrics_is_refused(
    flags: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert main(["run-batch", "scripted:", *files, *flags]) == 2
    assert error in capsys.readouterr().err


def test_batch_with_metrics_says_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(line("one", prompt="hello", max_tokens=2))
    files = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    flags = ["--enable-metrics", "--port", "0", "--max-model-len", "64"]
    assert main(["run-batch", "scripted:", *files, *flags]) == 0
    printed = capsys.readouterr().out
    assert "metrics at http://127.0.0.1:" in printed
    assert "answered 1, failed 0" in printed
