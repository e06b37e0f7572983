"""Child processes of the parent, and what the API process preserves for the next one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from builtin_plugins.commands.serve.messages import Keep, Launch
from builtin_plugins.commands.serve.parent_handle import Preserved

_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; child processes get the default handlers."""


@dataclass(slots=True)
class _Child:
    """A child process; `descriptor` is its pidfd."""

    descriptor: int
    input: int | None
    leader: bool
    status: int | None = None

    def write_line(self, line: bytes) -> None:
        """Write to its standard input; ignores a dead or blocked process."""
        with contextlib.suppress(OSError):
            if self.input is not None:
                os.write(self.input, line)

    def release(self) -> None:
        """Close its standard input, so that it ends."""
        if self.input is not None:
            os.close(self.input)
            self.input = None


class ChildProcesses:
    """Table of child processes by pid and preserved items by name."""

    def __init__(self) -> None:
        self._processes: dict[int, _Child] = {}
        self._preserved: dict[str, Preserved] = {}

    # --- requests of the API process

    def launch(self, request: Launch, descriptors: Sequence[int]) -> tuple[int, int]:
        """Start a process; return its pid and its pidfd, which stays open here.

        Raises `OSError`.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            (given,) = descriptors
            number = max(reading, given) + 1  # dup to a number that is open in the child only
            actions = [(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, given, number)]
            command = [*request.command[:-1], str(number).encode()]
            spawn = partial(os.posix_spawn, setpgroup=0) if request.leader else os.posix_spawn
            pid = spawn(
                command[0],
                command,
                dict(request.environment),
                file_actions=actions,
                setsigdef=_SIGNALS,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
            for descriptor in descriptors:
                os.close(descriptor)
        child = self._processes[pid] = _Child(os.pidfd_open(pid), writing, request.leader)
        return pid, child.descriptor

    def send_line(self, pid: int, line: str) -> None:
        """Write a line to a process's standard input."""
        if pid in self._processes:
            self._processes[pid].write_line(f"{line}\n".encode())

    def release(self, pid: int) -> None:
        """Close a process's standard input, so that it ends."""
        if pid in self._processes:
            self._processes[pid].release()
            self._forget_ended()

    def keep(self, request: Keep, descriptors: Sequence[int]) -> None:
        """Preserve an item, replacing the previous one of that name."""
        before = self._preserved.get(request.name)
        child = self._processes.get(request.pid) if request.pid is not None else None
        self._preserved[request.name] = Preserved(
            request.note,
            tuple(descriptors),
            tuple(request.paths),
            None if child is None else request.pid,
            None if child is None else child.descriptor,
        )
        for descriptor in () if before is None else before.descriptors:
            os.close(descriptor)
        self._forget_ended()

    def status_of(self, pid: int) -> int:
        """Return the exit status of a process; an unknown one counts as killed."""
        child = self._processes.get(pid)
        return -signal.SIGKILL if child is None or child.status is None else child.status

    # --- called by the parent

    def preserved(self) -> dict[str, Preserved]:
        """Return the preserved items by name."""
        return dict(self._preserved)

    def ended(self, pid: int, status: int) -> None:
        """Record the exit status of a process."""
        if pid in self._processes:
            self._processes[pid].status = status

    def on_server_exit(self) -> None:
        """Handle the exit of the API process: notify preserved processes, kill the others."""
        preserved_pids = {preserved.pid for preserved in self._preserved.values()}
        for pid, child in self._processes.items():
            if pid in preserved_pids:
                child.write_line(b"\n")
            else:
                self._kill(pid, child)

    def end(self, *, remove_paths: bool = True) -> None:
        """Kill all processes and drop all preserved items."""
        for pid, child in self._processes.items():
            self._kill(pid, child)
        for preserved in self._preserved.values():
            for path in preserved.paths if remove_paths else ():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for descriptor in preserved.descriptors:
                os.close(descriptor)
        self._preserved.clear()

    @property
    def pids(self) -> list[int]:
        """Pids of all processes, except released ones that have ended."""
        return list(self._processes)

    @property
    def are_alive(self) -> bool:
        """Return whether any process is running."""
        return any(child.status is None for child in self._processes.values())

    def close_inputs(self) -> None:
        """Close all inherited standard inputs, in a forked process."""
        for child in self._processes.values():
            child.release()

    def _kill(self, pid: int, child: _Child) -> None:
        child.release()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if child.leader:
                os.killpg(pid, signal.SIGKILL)  # includes its ranks
            elif child.status is None:
                os.kill(pid, signal.SIGKILL)

    def _forget_ended(self) -> None:
        preserved_pids = {preserved.pid for preserved in self._preserved.values()}
        for pid, child in list(self._processes.items()):
            if child.status is not None and child.input is None and pid not in preserved_pids:
                os.close(child.descriptor)
                del self._processes[pid]
