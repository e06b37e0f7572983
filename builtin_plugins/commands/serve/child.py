"""The side of the process that serves: how it speaks to its parent, and ends with it."""

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
    Ended,
    Keep,
    Launch,
    Leave,
    Release,
    Request,
    Serving,
    Tell,
    receive,
    send,
)
from core.api import EngineDead, Kept


@dataclass(frozen=True, slots=True)
class Held:
    """What the parent keeps, as it is handed on to the next life."""

    note: bytes
    descriptors: tuple[int, ...]
    paths: tuple[str, ...]
    pid: int | None
    pid_descriptor: int | None


class Handle:
    """What `core.api.Parent` promises, over a socket; made in a process that has just been forked."""

    def __init__(
        self, connection: socket.socket, lifeline: int, held: Mapping[str, Held], restarts: int
    ) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._restarts = restarts
        self._paths: dict[str, Sequence[str]] = {name: each.paths for name, each in held.items()}
        self._kept = {name: self._take(each) for name, each in held.items()}
        threading.Thread(
            target=end_with, args=(lifeline, self._all_paths), name="lifeline", daemon=True
        ).start()

    @property
    def restarts(self) -> int:
        """Times the process that serves was started again."""
        return self._restarts

    def kept(self, name: str) -> Kept | None:
        """Return what was kept under a name when this life began."""
        return self._kept.get(name)

    def keep(
        self,
        name: str,
        note: bytes = b"",
        *,
        descriptors: Sequence[int] = (),
        process: Any = None,
        paths: Sequence[str] = (),
    ) -> None:
        """Keep this for the next life."""
        self._paths[name] = paths
        pid = None if process is None or process.poll() is not None else process.pid
        self._ask(Keep(name, note, list(paths), pid), descriptors)

    def launch(self, command: Sequence[str], **options: Any) -> Launched:
        """Start a process as a child of the parent. Raises `EngineDead` when that cannot."""
        environment = [
            (os.fsencode(name), os.fsencode(value)) for name, value in options["env"].items()
        ]
        wanted = Launch(
            [os.fsencode(word) for word in command], environment, options.get("process_group") == 0
        )
        answer, (pid_descriptor,) = self._ask(wanted, options["pass_fds"])
        return Launched(self, answer.number, pid_descriptor)

    def tell(self, process: Any, line: str) -> None:
        """Write a line to the standard input of a process that was launched."""
        self._ask(Tell(process.pid, line))

    def serving(self, stand_in: str = "") -> None:
        """Say that we serve."""
        self._ask(Serving(stand_in))

    def leave(self) -> None:
        """Say that we end on purpose: nobody is to start us again."""
        with contextlib.suppress(EngineDead):
            self._ask(Leave())

    def status_of(self, pid: int) -> int:
        """Return how a process has ended that has."""
        return self._ask(Ended(pid))[0].number

    def release(self, pid: int) -> None:
        """Let go of a process."""
        self._ask(Release(pid))

    def _take(self, held: Held) -> Kept:
        process = None
        if held.pid is not None and held.pid_descriptor is not None:
            process = Launched(self, held.pid, os.dup(held.pid_descriptor))
        return Kept(held.note, held.descriptors, process)

    def _all_paths(self) -> Iterable[str]:
        return [path for paths in list(self._paths.values()) for path in paths]

    def _ask(self, request: Request, descriptors: Sequence[int] = ()) -> tuple[Answer, list[int]]:
        try:
            with self._lock:
                send(self._connection, request, descriptors)
                answer, beside = receive(self._connection, Answer)
        except (OSError, EOFError) as error:
            raise EngineDead(f"the parent of this process has ended: {error}") from error
        if answer.error:
            raise EngineDead(answer.error)
        return answer, beside


@dataclass(slots=True)
class Launched:
    """A process whose parent is ours: as much of `subprocess.Popen` as its user needs."""

    handle: Handle
    pid: int
    descriptor: int
    returncode: int | None = None
    stdin: _Input = field(init=False)

    def __post_init__(self) -> None:
        self.stdin = _Input(self.handle, self.pid)

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended. Raises `subprocess.TimeoutExpired` when it has not in time."""
        status = self._look(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def _look(self, most_ms: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            if poller.poll(most_ms):
                self.returncode = self.handle.status_of(self.pid)
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Input:
    """Its standard input, which can only be closed."""

    handle: Handle
    pid: int

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(EngineDead):  # then it is closed
            self.handle.release(self.pid)


def end_with(lifeline: int, paths: Any) -> None:
    """Wait for the end of a pipe, which is the parent's end; leave nothing of its behind."""
    while os.read(lifeline, 4096):
        pass
    for path in paths():
        with contextlib.suppress(OSError):
            os.unlink(path)
    os._exit(1)
