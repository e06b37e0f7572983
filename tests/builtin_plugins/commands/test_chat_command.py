"""`engine chat` and `engine complete`, called in this process against a server in another, and on a
terminal.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.chat.images import Attachments
from core.cli.main import main
from tests.served import COLD
from tests.timeouts import TIMEOUT_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
ENOUGH_SLEEP = 5
"""Looks in a row, 10 ms apart, that find the program asleep."""

Talk = Callable[..., tuple[int, str, str]]
Start = Callable[..., str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the scripted model, which echoes its prompt."""
    flags = "--port 0 --max-model-len 4096 --api-key sesame --log-level error"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", "scripted:", *COLD, *flags.split()],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1] + "/v1"
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


@pytest.fixture
def talk(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Run a command with these lines piped into it; return its status and what it printed."""
    monkeypatch.setenv("ENGINE_API_KEY", "sesame")

    def run(command: str, *argv: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        status = main([command, *([] if "--url" in argv else ["--url", url]), *argv])
        return status, *capsys.readouterr()

    return run


def test_quick_message_prints_one_answer(talk: Talk) -> None:
    assert talk("chat", "-q", "grüß dich 🦊") == (0, "grüß dich 🦊\n", "")
    assert talk("complete", "--quick", "once upon", "--max-tokens", "4") == (0, "once\n", "")


def test_piped_lines_are_sent_in_order(talk: Talk) -> None:
    assert talk("chat", typed="one\n\ntwo\n") == (0, "one\ntwo\n", "")
    assert talk("complete", "--max-tokens", "50", typed="three\nfour") == (0, "three\nfour\n", "")


def test_image_is_part_of_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"pixels")
    images = Attachments()
    images.add(f" '{tmp_path}/a b.png' ")
    images.add("https://a.test/b.jpg")
    assert images.content_with("what?") == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGl4ZWxz"}},
        {"type": "image_url", "image_url": {"url": "https://a.test/b.jpg"}},
        {"type": "text", "text": "what?"},
    ]
    assert images.content_with("and now?") == "and now?"


def test_image_line_and_flag_send_an_image(talk: Talk, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"pixels")
    status, out, error = talk("chat", typed=f"/image {image}\nwhat?\nhi\n")
    assert (status, out) == (1, "hi\n")
    assert "takes no images" in error  # the scripted model reads text
    status, _, error = talk("chat", "--image", str(image), "-q", "what?")
    assert (status, "takes no images" in error) == (1, True)


@pytest.mark.parametrize("name", ["missing.png", "a.txt", "."])
def test_file_that_is_no_image_is_refused(talk: Talk, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    status, out, error = talk("chat", typed=f"/image {tmp_path}/{name}\nhi\n")
    assert (status, out) == (1, "hi\n")
    assert "engine: error: " in error


def test_model_defaults_to_the_first_listed(talk: Talk) -> None:
    assert talk("chat", "--model-name", "scripted:", "-q", "hi")[:2] == (0, "hi\n")
    status, out, error = talk("chat", "--model-name", "other", "-q", "hi")
    assert (status, out) == (1, "")
    assert "the server rejected the request (404): " in error


def test_missing_api_key_is_reported(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_API_KEY")
    status, _, error = talk("chat", "-q", "hi")
    assert status == 1
    assert "the server rejected the request (401): " in error
    assert error.endswith("Set --api-key or ENGINE_API_KEY.\n")
    assert talk("chat", "-q", "hi", "--api-key", "sesame")[:2] == (0, "hi\n")


def test_failed_request_sets_the_exit_status(talk: Talk) -> None:
    status, out, error = talk("complete", "--max-tokens=-5", typed="one\ntwo\n")
    assert (status, out) == (1, "")
    assert error.count("engine: error: the server rejected the request (400): ") == 2


def test_unreachable_server_is_reported_with_the_remedy(talk: Talk) -> None:
    status, _, error = talk("chat", "--url", "http://127.0.0.1:9/v1", "-q", "hi")
    assert status == 1
    assert error == (
        "engine: error: no server answers at http://127.0.0.1:9/v1: Connection refused. Start one "
        "with "
        "`engine serve MODEL`, or set --url.\n"
    )


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://host:port/v1"])
def test_invalid_url_is_rejected(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url, "-q", "hi"]) == 2
    assert f"--url: got {url!r}" in capsys.readouterr().err


# --- servers that misbehave


class Odd(BaseHTTPRequestHandler):
    """Records its requests and sends a fixed answer."""

    answer = b""
    requests: list[dict[str, Any]] = []
    holds = False
    """After the answer, wait until the client has left."""
    left = threading.Event()

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if body:
            self.requests.append(json.loads(body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)
        if self.holds and not self.rfile.read(1):
            self.left.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[Start]:
    """Start a server that gives this answer to everything; return its address."""
    Odd.requests = []
    Odd.left = threading.Event()
    servers = []

    def start(answer: bytes, holds: bool = False) -> str:
        Odd.answer = answer
        Odd.holds = holds
        server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            event("ha") + b'data: {"error": {"message": "the engine died"}}\n\n',
            "engine: error: the engine died",
        ),
        (event("ha"), "ended the response early"),
        (event("ha") + b"data: {oops\n\n", "sent invalid JSON: {oops"),
    ],
)
def test_broken_stream_is_reported(
    answer: bytes, message: str, odd: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--url", odd(answer), "--model-name", "m", "-q", "hi"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "ha"
    assert message in captured.err


@pytest.mark.parametrize("answer", [b"<html>", b'{"data": "none"}', b"[]"])
def test_non_api_url_is_reported(
    answer: bytes, odd: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--url", odd(answer), "-q", "hi"]) == 1
    assert "lists no models. Check the address of the API." in capsys.readouterr().err


def test_server_gets_the_whole_conversation(odd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n"))
    url = odd(event("yes") + b"data: [DONE]\n\n")
    assert main(["chat", "--url", url, "--model-name", "m", "--system-prompt", "be brief"]) == 0
    assert Odd.requests[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
    ]


# --- on a terminal


class Terminal:
    """`engine chat` with a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        pty = pytest.importorskip("pty")
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", OMP_NUM_THREADS="1", ENGINE_API_KEY="sesame")
            os.execv(sys.executable, [sys.executable, "-P", "-c", COMMAND, *argv])
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, after: int = 0) -> int:
        """Return where the text ends on the screen."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output[after:]:
            ready, _, _ = select.select([self._fd], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} did not come, but {self.output[after:]!r}"
            self.output += os.read(self._fd, 4096).decode("utf-8", "replace")
        return self.output.index(text, after) + len(text)

    def wait_until_it_listens(self) -> None:
        """Return when the program sleeps: an interrupt between its prompt and its reading waits for
        the next key.
        """
        stat = Path(f"/proc/{self.pid}/stat")
        seen = 0
        deadline = time.monotonic() + TIMEOUT_S
        while seen < ENOUGH_SLEEP:
            assert time.monotonic() < deadline, "the program never waits for a key"
            seen = seen + 1 if stat.read_text().rpartition(") ")[2].startswith("S") else 0
            time.sleep(0.01)

    def end(self) -> int:
        try:
            while os.read(self._fd, 4096):
                pass
        except OSError:  # how a terminal says that the program has left it
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_cancels_the_response_and_ctrl_d_exits(odd: Start) -> None:
    # background processes of a shell ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terminal = Terminal("chat", "--url", odd(event("begun"), holds=True), "--model-name", "m")
    at = terminal.wait_for("> ", terminal.wait_for("Ctrl-D exits."))
    terminal.type("hello\n")
    at = terminal.wait_for("begun", at)
    terminal.type("\x03")
    assert Odd.left.wait(TIMEOUT_S), "the request was not cancelled"
    at = terminal.wait_for("> ", at)
    terminal.wait_until_it_listens()
    terminal.type("\x03")  # drops the current line
    at = terminal.wait_for("> ", at)
    terminal.wait_until_it_listens()
    Odd.answer = event("whole") + b"data: [DONE]\n\n"
    Odd.holds = False
    terminal.type("again\n")
    terminal.wait_for("> ", terminal.wait_for("whole", at))
    terminal.type("\x04")
    assert terminal.end() == 0
    sent = [message["content"] for message in Odd.requests[-1]["messages"]]
    assert sent == ["hello", "begun", "again"], "a cancelled response stays in the history"


def test_terminal_control_characters_are_removed(odd: Start) -> None:
    url = odd(event("\x1b]0;title\x07a\tb\x9bc") + b"data: [DONE]\n\n")
    terminal = Terminal("chat", "--url", url, "--model-name", "m", "-q", "hi")
    terminal.wait_for("c\r\n")
    assert "]0;titlea" in terminal.output
    assert "\x1b" not in terminal.output
    assert terminal.end() == 0
