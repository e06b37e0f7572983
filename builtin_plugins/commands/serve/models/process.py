"""The process of one model: `engine serve` at a Unix socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.commands.route.proxy import Address, Answer, Lost, call_engine
from builtin_plugins.commands.serve.models.settings import ModelSettings, child_file
from builtin_plugins.servers.api import Parent, PreservedState
from core.api import EngineError
from core.api.config import CONFIG_FILE, ENVIRONMENT_FIELDS

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Interval of checks for a start or an end, in seconds."""
ANSWER_S: Final = 5.0
"""Timeout of a probe, in seconds."""
STOP_S: Final = 20.0
"""Seconds for a process to end after SIGTERM; then it is killed."""
NUM_LINES: Final = 50
"""Number of lines of output that are searched for the reason of a failed start."""
READ_BYTES: Final = 1 << 16
_ERROR: Final = re.compile(r"^engine: error: (.*)", re.DOTALL | re.MULTILINE)


class LoadFailed(EngineError):
    """A model cannot be loaded."""


class ModelProcess:
    """A process that serves one model."""

    def __init__(
        self, settings: ModelSettings, socket: str, process: Any, output: int, *, prefix: bool
    ) -> None:
        """`process` is like `subprocess.Popen`; `output` is the read end of its output."""
        self.address = Address("http://localhost", "", 0, is_https=False, uds=socket)
        keys = settings.values.get("api_key") or ()
        self._headers = [(b"authorization", b"Bearer " + key.encode()) for key in keys[:1]]
        name = settings.name
        self.process = process
        self.output = output
        self._prefix = f"[{name}] " if prefix else ""
        self._lines: deque[str] = deque(maxlen=NUM_LINES)
        self._rest = b""
        os.set_blocking(output, False)

    def follow(self) -> None:
        """Pass its output on to this process's log from now on, in the running event loop."""
        asyncio.get_running_loop().add_reader(self.output, self._read)

    @property
    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self.process.poll() is None

    def get(self, target: bytes, timeout_s: float) -> AbstractAsyncContextManager[Answer]:
        """Fetch one of its pages. Raises `Lost`."""
        return call_engine(self.address, b"GET", target, self._headers, b"", timeout_s)

    async def ready(self) -> None:
        """Wait until it serves. Raises `LoadFailed` with the reason if it ends before."""
        while self.is_alive:
            if await self._is_ready():
                return
            await asyncio.sleep(POLL_S)
        raise LoadFailed(self.exit_reason())

    async def _is_ready(self) -> bool:
        if not os.path.exists(self.address.uds):
            return False
        with contextlib.suppress(Lost):
            async with self.get(b"/readyz", ANSWER_S) as answer:
                return answer.status == 200
        return False

    def exit_reason(self) -> str:
        """Return why it has ended: its error message, or its exit status."""
        self._read()
        if found := _ERROR.search("\n".join(self._lines)):
            return found[1].strip()
        status = self.process.poll()
        if status is not None and status < 0:
            return f"its process was killed by {signal.Signals(-status).name}"
        return f"its process exited with status {status}"

    async def stop(self) -> None:
        """End it, and wait for its end."""
        self.terminate()
        until_s = time.monotonic() + STOP_S
        while self.is_alive:
            if time.monotonic() > until_s:
                self.process.kill()
            await asyncio.sleep(POLL_S)
        asyncio.get_running_loop().remove_reader(self.output)
        self.close()

    def terminate(self) -> None:
        """Request its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    def close(self) -> None:
        """Kill it if it still runs, and release what it held here."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0)
        if self.is_alive:
            self.process.kill()
            self.process.wait()
        self._read()
        os.close(self.output)
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address.uds)

    def _read(self) -> None:
        """Log what it has written."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output, READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    text = line.decode(errors="replace")
                    self._lines.append(text)
                    print(f"{self._prefix}{text}", file=sys.stderr)
            with contextlib.suppress(RuntimeError):  # no loop runs
                asyncio.get_running_loop().remove_reader(self.output)


class ProcessStarter:
    """Starts processes of models, through the parent where there is one."""

    def __init__(self, folder: Path, parent: Parent | None, *, json_logs: bool) -> None:
        """`folder` holds sockets and configuration files."""
        self._folder = folder
        self._parent = parent
        self._prefix = not json_logs

    def start(self, number: int, settings: ModelSettings) -> ModelProcess:
        """Start the process of the model with this number. Raises `OSError`, `EngineError`."""
        socket = self._folder / f"{number}.sock"
        file = self._folder / f"{number}.yaml"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(child_file(settings, str(socket)))
        reading, writing = os.pipe()
        launch: Callable[..., Any] = (
            subprocess.Popen if self._parent is None else self._parent.launch
        )
        above = os.getpid() if self._parent is None else os.getppid()
        command = [sys.executable, "-P", "-m", "builtin_plugins.commands.serve.models.child"]
        try:
            process = launch(
                [*command, str(file), str(above), str(writing)],
                stdin=subprocess.PIPE,
                env=_environment(),
                process_group=0,  # Ctrl-C reaches the server only, which then ends its models
                pass_fds=(writing,),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return ModelProcess(settings, str(socket), process, reading, prefix=self._prefix)

    def preserve(self, settings: ModelSettings, process: ModelProcess | None) -> None:
        """Preserve a loaded model, or none, for the next API process."""
        if self._parent is None:
            return
        key = _key(settings)
        if process is None:
            self._parent.preserve(key)
            return
        note = msgspec.json.encode([process.address.uds, settings.model])
        self._parent.preserve(key, note, descriptors=[process.output], process=process.process)

    def preserved(self, settings: ModelSettings) -> ModelProcess | None:
        """Return the process that the previous API process had loaded; None: there is none."""
        found: PreservedState | None = None
        if self._parent is not None:
            found = self._parent.preserved(_key(settings))
        if (
            found is None
            or not found.note
            or found.process is None
            or found.process.poll() is not None
        ):
            return None
        socket, _ = msgspec.json.decode(found.note, type=list[str])
        return ModelProcess(
            settings, socket, found.process, os.dup(found.descriptors[0]), prefix=self._prefix
        )


def _key(settings: ModelSettings) -> str:
    return f"model {settings.name}"


def _environment() -> dict[str, str]:
    """Return the environment of a model's process: its file has the settings."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ENVIRONMENT_FIELDS and name != CONFIG_FILE
    }
    # Only this server reaches the socket, and it says which client a request comes from.
    return {**environment, "FORWARDED_ALLOW_IPS": "*"}
