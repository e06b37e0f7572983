"""A server under test, a healthy client next to the attacks, and what every response must meet."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.system.attacks.corpus_files import Raw, Request, expand

ROOT: Final = Path(__file__).parents[3]
KEY: Final = "the-key-of-the-corpus"
TIMEOUT_S: Final = 600.0
"""Timeout in seconds for everything that must arrive; long, for busy machines."""
FLAGS: Final = (
    *("--served-model-name", "demo", "--port", "0"),
    *("--dtype", "float32", "--num-threads", "1"),
)
PARSERS: Final = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--reasoning-parser", "think"),
)
COMMAND: Final = "import sys; from core.cli.main import main; sys.exit(main())"
HEALTHY: Final = {
    "messages": [{"role": "user", "content": "What is prefix caching?"}],
    "temperature": 0,
    "max_tokens": 24,
    "ignore_eos": True,
    "stream": True,
    "return_token_ids": True,
}
_LEAKS: Final = re.compile(r"0x[0-9a-fA-F]{6,}|Traceback|File \"|" + re.escape(str(ROOT)))
"""Addresses, stack frames and local paths, which no error may contain."""
INVALID_HTTP: Final = "Invalid HTTP request received."
"""Response of uvicorn to bytes that are not a request."""
_ERROR_FIELDS: Final = {"message", "type", "param", "code"}


@dataclass(frozen=True)
class Answer:
    """Status and body of a response. Status 0: none; -1: the connection was cut."""

    status: int
    text: str

    @property
    def error(self) -> dict[str, Any]:
        """The error object, or an empty dict."""
        with suppress(ValueError):
            value = json.loads(self.text)
            if isinstance(value, dict):
                # Cohere's error fields are at the top level.
                error = value.get("error")
                return dict(error) if isinstance(error, dict) else value
        return {}

    def faults(self) -> list[str]:
        """Return what is wrong with any response like this one."""
        faults = []
        if self.status >= 500 and self.status != 503:
            faults.append(f"status {self.status}")
        if self.status >= 400 and self.error.keys() != _ERROR_FIELDS and self.text != INVALID_HTTP:
            faults.append("an error in another format")
        if self.status >= 400 and (leak := _LEAKS.search(self.text)):
            faults.append(f"the response leaks {leak[0]!r}")
        return [f"{fault}: {self.text[:300]}" for fault in faults]


@dataclass
class ServerUnderTest:
    """A server process, and methods to send to it."""

    process: subprocess.Popen[str] | None
    """None for a server that was started elsewhere."""
    url: str
    canary: str = ""
    canary_calls: list[str] = field(default_factory=list)
    """Peers that connected to the canary."""
    key: str = KEY

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def process_tree(self) -> dict[int, int]:
        """Return the parent of the server's process and of its descendants, root first."""
        if self.process is None:
            return {}
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    parents[int(stat.parent.name)] = int(fields[1])
        pids = [self.process.pid]
        for pid in pids:
            pids += [child for child, parent in parents.items() if parent == pid]
        return {pid: parents.get(pid, 0) for pid in pids}

    def pids(self) -> list[int]:
        """Return the server's process and its descendants."""
        return list(self.process_tree())

    def engine_pids(self) -> set[int]:
        """Return the engine and worker processes, without forks of them.

        A fork (a grammar process) ends after some requests; an engine never does.
        """
        tree = self.process_tree()
        lines: dict[int, bytes] = {}
        for pid in tree:
            with suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return {
            pid
            for pid, line in lines.items()
            if b"builtin_plugins.executors.process" in line and line != lines.get(tree[pid])
        }

    def process_name(self, pid: int) -> str:
        """Return the name of a process as the kernel has it."""
        with suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        return "ended"

    def send(self, request: Request) -> list[Answer]:
        """Send a request `times` times concurrently; return the answers."""
        answers: list[Answer] = []
        content = request.content(self.canary)
        threads = [
            threading.Thread(target=self._send_one, args=(request, content, answers))
            for _ in range(request.times)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _send_one(self, request: Request, content: bytes | None, answers: list[Answer]) -> None:
        headers = {"content-type": "application/json", **request.headers}
        if request.authenticated:
            headers["authorization"] = f"Bearer {self.key}"
        leave_s = request.disconnect_after_s
        timeout_s = TIMEOUT_S if leave_s is None else leave_s
        deadline = time.monotonic() + timeout_s
        try:
            # Without TLS there is nothing to verify: reading certificates takes longer than a
            # request.
            with httpx.stream(
                request.http_method(),
                self.url + request.path,
                content=content,
                headers=headers,
                timeout=timeout_s,
                verify=False,
            ) as response:
                received = bytearray()
                for chunk in response.iter_bytes():
                    received += chunk
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("the response takes longer than its client")
            answers.append(Answer(response.status_code, received.decode(errors="replace")))
        except httpx.TimeoutException:
            answers.append(Answer(0, "no answer" if leave_s is None else "the client left"))
        except httpx.TransportError as error:
            answers.append(Answer(-1, f"the connection was cut: {error!r}"))

    def send_raw(self, raw: Raw) -> Answer:
        """Send bytes over a new connection; return the first answer."""
        data = expand(raw.send, self.canary)
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as connection:
            with suppress(OSError):  # The server may have closed it already.
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(ConnectionError):
                while chunk := connection.recv(65536):
                    received += chunk
        if not received:
            return Answer(0, "")
        head, _, body = received.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        return Answer(int(status[1]) if status else -1, body.decode(errors="replace"))

    def get(self, path: str) -> httpx.Response:
        """GET a path with the API key."""
        return httpx.get(
            self.url + path, headers={"authorization": f"Bearer {self.key}"}, timeout=TIMEOUT_S
        )

    def healthy_tokens(self) -> list[int]:
        """Return the tokens of one healthy greedy stream."""
        tokens: list[int] = []
        url = f"{self.url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {self.key}"}
        with httpx.stream("POST", url, json=HEALTHY, headers=headers, timeout=TIMEOUT_S) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"a healthy request was rejected: {reply.read()!r}")
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    for choice in event["choices"]:
                        tokens += choice.get("token_ids") or ()
        return tokens


class HealthyClient:
    """A client that streams during attacks; its tokens must equal those of an idle server."""

    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self._expected = server.healthy_tokens()

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Stream during the block: whole streams, at least one.

        Raises `AssertionError` for other tokens.
        """
        done = threading.Event()
        started = threading.Event()
        faults = []

        def stream() -> None:
            while not (started.is_set() and done.is_set()):
                started.set()
                try:
                    tokens = self._server.healthy_tokens()
                except Exception as error:  # noqa: BLE001 - every error is a fault
                    faults.append(repr(error))
                    return
                if tokens != self._expected:
                    faults.append(f"{tokens} instead of {self._expected}")

        thread = threading.Thread(target=stream)
        thread.start()
        started.wait()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if faults:
            raise AssertionError(f"the healthy stream changed: {faults[0]}")


@contextmanager
def start_server(
    *flags: str, environment: Mapping[str, str] | None = None, warm: bool = True
) -> Iterator[ServerUnderTest]:
    """Serve the demo model with an API key on a free port, with a canary.

    With `warm` it has answered a request already. It must exit with status 0 at the end.
    """
    command = [sys.executable, "-P", "-c", COMMAND, "serve", *FLAGS, *PARSERS, *flags]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ENGINE_API_KEY": KEY,
        **(environment or {}),
    }
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    try:
        if process.stdout is None:
            raise RuntimeError("the server's output is not a pipe")
        line = process.stdout.readline()
        if not line.startswith("Serving "):
            raise RuntimeError(f"the server did not start: {line!r}")
        with _canary() as (address, calls):
            server = ServerUnderTest(process, line.split()[-1], address, calls)
            if warm:
                server.healthy_tokens()
            yield server
        process.send_signal(signal.SIGTERM)
        if (status := process.wait(TIMEOUT_S)) != 0:
            raise AssertionError(f"the server exited with status {status}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _canary() -> Iterator[tuple[str, list[str]]]:
    """Listen at an address that no server may connect to; record which peers do."""
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def record() -> None:
            with suppress(OSError):
                while True:
                    connection, peer = listener.accept()
                    connection.close()
                    calls.append(str(peer))

        thread = threading.Thread(target=record, daemon=True)
        thread.start()
        yield address, calls
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
