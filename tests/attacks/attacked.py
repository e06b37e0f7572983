"""A server to be attacked, the healthy client beside, and what every answer must be like."""

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
from corpus_files import Raw, Request, filled

ROOT: Final = Path(__file__).parents[2]
KEY: Final = "the-key-of-the-corpus"
PATIENCE_S: Final = 600.0
"""Longest wait for what has to come; on a machine busy with others everything does, late."""
FLAGS: Final = [
    "--served-model-name",
    "demo",
    "--port",
    "0",
    "--dtype",
    "float32",
    "--num-threads",
    "1",
]
PARSERS: Final = [
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--reasoning-parser",
    "think",
]
COMMAND: Final = "import sys; from core.cli.main import main; sys.exit(main())"
HEALTHY: Final = {
    "messages": [{"role": "user", "content": "What is prefix caching?"}],
    "temperature": 0,
    "max_tokens": 24,
    "ignore_eos": True,
    "stream": True,
    "return_token_ids": True,
}
_TELLS: Final = re.compile(r"0x[0-9a-fA-F]{6,}|Traceback|File \"|" + re.escape(str(ROOT)))
"""Addresses, stack frames and paths of this machine are nothing for an error to tell."""
NO_HTTP: Final = "Invalid HTTP request received."
"""What uvicorn says to bytes that are no request."""
_ERROR_FIELDS: Final = {"message", "type", "param", "code"}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    text: str

    @property
    def error(self) -> dict[str, Any]:
        """The error object, where the answer is one."""
        with suppress(ValueError):
            found = json.loads(self.text)
            if isinstance(found, dict):
                return dict(
                    found["error"] if isinstance(found.get("error"), dict) else found
                )  # Cohere's stand alone
        return {}

    def faults(self) -> list[str]:
        """Return what no answer may be like."""
        found = []
        if self.status >= 500 and self.status != 503:
            found.append(f"status {self.status}")
        if self.status >= 400 and self.error.keys() != _ERROR_FIELDS and self.text != NO_HTTP:
            found.append("an error of another form")
        if self.status >= 400 and (tells := _TELLS.search(self.text)):
            found.append(f"the answer tells {tells[0]!r}")
        return [f"{fault}: {self.text[:300]}" for fault in found]


@dataclass
class Attacked:
    """A server process and what is sent to it."""

    process: subprocess.Popen[str] | None
    """None: somebody else's."""
    url: str
    canary: str = ""
    calls: list[str] = field(default_factory=list)
    """Whoever called the canary."""
    key: str = KEY

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def family(self) -> dict[int, int]:
        """Return the server's process and all below it, each with its parent, from the top."""
        if self.process is None:
            return {}
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    parents[int(stat.parent.name)] = int(fields[1])
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return {pid: parents.get(pid, 0) for pid in found}

    def processes(self) -> list[int]:
        """Return the server's process and all below it."""
        return list(self.family())

    def engines(self) -> set[int]:
        """Return the processes that the server has started by our own ways, at any depth; not what
        is forked of them.

        A fork (a grammar's keeper) serves a request or a few and ends, an engine never does.
        """
        family = self.family()
        lines: dict[int, bytes] = {}
        for pid in family:
            with suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return {
            pid
            for pid, line in lines.items()
            if b"core.process" in line and line != lines.get(family[pid])
        }

    def ask(self, request: Request) -> list[Answer]:
        """Send a request as often as it says, at once; return the answers."""
        found: list[Answer] = []
        content = request.content(self.canary)
        threads = [
            threading.Thread(target=self._ask_one, args=(request, content, found))
            for _ in range(request.times)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _ask_one(self, request: Request, content: bytes | None, found: list[Answer]) -> None:
        headers = {"content-type": "application/json", **request.headers}
        if request.keyed:
            headers["authorization"] = f"Bearer {self.key}"
        patience_s = PATIENCE_S if request.leave_after_s is None else request.leave_after_s
        until_s = time.monotonic() + patience_s
        given = {"content": content, "headers": headers, "timeout": patience_s}
        try:
            # There is no TLS, so nothing to verify: reading certificates takes longer than most
            # requests.
            with httpx.stream(
                request.verb(), self.url + request.path, **given, verify=False
            ) as reply:
                received = bytearray()
                for part in reply.iter_bytes():
                    received += part
                    if time.monotonic() > until_s:
                        raise httpx.ReadTimeout("an answer that takes longer than its client")
            found.append(Answer(reply.status_code, received.decode(errors="replace")))
        except httpx.TimeoutException:
            found.append(
                Answer(0, "the client left" if request.leave_after_s is not None else "no answer")
            )
        except httpx.TransportError as error:
            found.append(Answer(-1, f"the connection was cut: {error!r}"))

    def send(self, raw: Raw) -> Answer:
        """Send bytes over a connection of their own; return the first answer."""
        data = filled(raw.send, self.canary)
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            with suppress(OSError):  # the server may have heard enough
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
        """Ask for something as an operator does."""
        return httpx.get(
            self.url + path, headers={"authorization": f"Bearer {self.key}"}, timeout=PATIENCE_S
        )

    def healthy(self) -> list[int]:
        """Return the tokens of one healthy greedy stream."""
        tokens: list[int] = []
        url = f"{self.url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {self.key}"}
        with httpx.stream("POST", url, json=HEALTHY, headers=headers, timeout=PATIENCE_S) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"a healthy request was refused: {reply.read()!r}")
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    tokens += [
                        token
                        for choice in event["choices"]
                        for token in choice.get("token_ids") or ()
                    ]
        return tokens


class Neighbour:
    """A client that streams all the while; its tokens must be those it gets alone."""

    def __init__(self, server: Attacked) -> None:
        self._server = server
        self._alone = server.healthy()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Stream beside what is done inside, whole streams, at least one.

        Raises AssertionError for other tokens.
        """
        over = threading.Event()
        faults = []
        begun = threading.Event()

        def stream() -> None:
            while not (begun.is_set() and over.is_set()):
                begun.set()
                try:
                    tokens = self._server.healthy()
                except Exception as error:  # noqa: BLE001 - whatever ends a healthy stream is what is looked for
                    faults.append(repr(error))
                    return
                if tokens != self._alone:
                    faults.append(f"{tokens} instead of {self._alone}")

        thread = threading.Thread(target=stream)
        thread.start()
        begun.wait()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if faults:
            raise AssertionError(f"the neighbour's stream was changed: {faults[0]}")


@contextmanager
def attacked(
    *flags: str, environment: Mapping[str, str] | None = None, warm: bool = True
) -> Iterator[Attacked]:
    """Serve the demo model with a key on a free port, beside a canary; it must end well when asked
    to.

    `warm`: it has answered something already.
    """
    command = [sys.executable, "-P", "-c", COMMAND, "serve", *FLAGS, *PARSERS, *flags]
    surroundings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ENGINE_API_KEY": KEY,
        **(environment or {}),
    }
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings)
    try:
        if process.stdout is None:
            raise RuntimeError("the server's output is not read")
        line = process.stdout.readline()
        if not line.startswith("Serving "):
            raise RuntimeError(f"the server did not start: {line!r}")
        with _canary() as (address, calls):
            server = Attacked(process, line.split()[-1], address, calls)
            if warm:
                server.healthy()
            yield server
        process.send_signal(signal.SIGTERM)
        if process.wait(PATIENCE_S) != 0:
            raise AssertionError("the server did not end well")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _canary() -> Iterator[tuple[str, list[str]]]:
    """Listen where no server may call; note whoever does."""
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def note() -> None:
            with suppress(OSError):
                while True:
                    connection, peer = listener.accept()
                    connection.close()
                    calls.append(str(peer))

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        yield address, calls
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
