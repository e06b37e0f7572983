"""The API process's connection to its parent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builtin_plugins.commands.serve.messages import (
    Answer,
    Drained,
    Ended,
    Keep,
    Launch,
    Leave,
    Release,
    Request,
    SendLine,
    Serving,
    receive,
    send,
)
from builtin_plugins.servers.api import PreservedState
from core.api import EngineDead


@dataclass(frozen=True, slots=True)
class Preserved:
    """An item that the parent preserves for the next API process."""

    note: bytes
    descriptors: tuple[int, ...]
    paths: tuple[str, ...]
    pid: int | None
    pid_descriptor: int | None


class ParentHandle:
    """Implements `core.api.Parent` over a socket; created in a newly forked process."""

    def __init__(
        self,
        connection: socket.socket,
        liveness: int,
        preserved: Mapping[str, Preserved],
        restarts: int,
    ) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._restarts = restarts
        self._paths: dict[str, Sequence[str]] = {
            name: each.paths for name, each in preserved.items()
        }
        self._preserved = {name: self._state_of(each) for name, each in preserved.items()}
        threading.Thread(
            target=exit_with_parent, args=(liveness, self._all_paths), name="liveness", daemon=True
        ).start()

    @property
    def restarts(self) -> int:
        """Number of restarts of the API process."""
        return self._restarts

    def preserved(self, name: str) -> PreservedState | None:
        """Return the state preserved under a name by the previous API process."""
        return self._preserved.get(name)

    def preserve(
        self,
        name: str,
        note: bytes = b"",
        *,
        descriptors: Sequence[int] = (),
        process: Any = None,
        paths: Sequence[str] = (),
    ) -> None:
        """Preserve state for the next API process."""
        self._paths[name] = paths
        pid = None if process is None or process.poll() is not None else process.pid
        self._request(Keep(name, note, list(paths), pid), descriptors)

    def launch(self, command: Sequence[str], **options: Any) -> Launched:
        """Start a process as a child of the parent. Raises `EngineDead` on failure."""
        environment = [
            (os.fsencode(name), os.fsencode(value)) for name, value in options["env"].items()
        ]
        request = Launch(
            [os.fsencode(word) for word in command], environment, options.get("process_group") == 0
        )
        answer, (pid_descriptor,) = self._request(request, options["pass_fds"])
        return Launched(self, answer.number, pid_descriptor)

    def send_line(self, process: Any, line: str) -> None:
        """Write a line to the standard input of a launched process."""
        self._request(SendLine(process.pid, line))

    def report_serving(self, maintenance_target: str = "") -> None:
        """Report that the server is up."""
        self._request(Serving(maintenance_target))

    def report_drained(self) -> None:
        """Report that the server has stopped: this process is killed if it does not end soon."""
        with contextlib.suppress(EngineDead):
            self._request(Drained())

    def leave(self, status: int) -> None:
        """Report an intended exit, after which there is no restart."""
        with contextlib.suppress(EngineDead):
            self._request(Leave(status))

    def status_of(self, pid: int) -> int:
        """Return the exit status of an ended process."""
        return self._request(Ended(pid))[0].number

    def release(self, pid: int) -> None:
        """Release a process."""
        self._request(Release(pid))

    def _state_of(self, preserved: Preserved) -> PreservedState:
        process = None
        if preserved.pid is not None and preserved.pid_descriptor is not None:
            process = Launched(self, preserved.pid, os.dup(preserved.pid_descriptor))
        return PreservedState(preserved.note, preserved.descriptors, process)

    def _all_paths(self) -> Iterable[str]:
        return [path for paths in list(self._paths.values()) for path in paths]

    def _request(
        self, request: Request, descriptors: Sequence[int] = ()
    ) -> tuple[Answer, list[int]]:
        try:
            with self._lock:
                send(self._connection, request, descriptors)
                answer, passed = receive(self._connection, Answer)
        except (OSError, EOFError) as error:
            raise EngineDead(f"the parent of this process has ended: {error}") from error
        if answer.error:
            raise EngineDead(answer.error)
        return answer, passed


@dataclass(slots=True)
class Launched:
    """A process launched by the parent, with the used part of the `subprocess.Popen` interface."""

    handle: ParentHandle
    pid: int
    descriptor: int
    returncode: int | None = None
    stdin: _Input = field(init=False)

    def __post_init__(self) -> None:
        self.stdin = _Input(self.handle, self.pid)

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status. Raises `subprocess.TimeoutExpired`."""
        status = self._poll(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def terminate(self) -> None:
        """Request its end."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def _poll(self, timeout_ms: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            if poller.poll(timeout_ms):
                self.returncode = self.handle.status_of(self.pid)
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Input:
    """Its standard input, which can only be closed."""

    handle: ParentHandle
    pid: int

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(EngineDead):  # already closed
            self.handle.release(self.pid)


def exit_with_parent(liveness: int, paths: Any) -> None:
    """Wait for the parent's exit (end of a pipe), then remove the paths and exit."""
    while os.read(liveness, 4096):
        pass
    for path in paths():
        with contextlib.suppress(OSError):
            os.unlink(path)
    os._exit(1)
