"""What the parent keeps: the processes it has started for those who serve, and what these hand to
the next life.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from builtin_plugins.commands.serve.child import Held
from builtin_plugins.commands.serve.messages import Keep, Launch

_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them; a process we start begins with what is usual."""


@dataclass(slots=True)
class _Started:
    """A process: its end is to be seen at `descriptor` by whoever has one of it."""

    descriptor: int
    input: int | None
    leader: bool
    status: int | None = None

    def say(self, line: bytes) -> None:
        """Write to its standard input; it may be dead, or frozen for a thousand lines."""
        with contextlib.suppress(OSError):
            if self.input is not None:
                os.write(self.input, line)

    def release(self) -> None:
        """Close its standard input, so that it ends."""
        if self.input is not None:
            os.close(self.input)
            self.input = None


class Charges:
    """Knows processes by number and what is kept by name; is told by its owner who has ended."""

    def __init__(self) -> None:
        self._processes: dict[int, _Started] = {}
        self._kept: dict[str, Held] = {}

    # --- asked for by the process that serves

    def launch(self, wanted: Launch, descriptors: Sequence[int]) -> tuple[int, int]:
        """Start a process; return its number and a descriptor of it, which stays ours.

        Raises `OSError`.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            (given,) = descriptors
            number = (
                max(reading, given) + 1
            )  # a copy of another number is open in what is started, and only there
            actions = [(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, given, number)]
            command = [*wanted.command[:-1], str(number).encode()]
            spawn = partial(os.posix_spawn, setpgroup=0) if wanted.leader else os.posix_spawn
            pid = spawn(
                command[0],
                command,
                dict(wanted.environment),
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
        started = self._processes[pid] = _Started(os.pidfd_open(pid), writing, wanted.leader)
        return pid, started.descriptor

    def tell(self, pid: int, line: str) -> None:
        """Write a line to a process' standard input."""
        if pid in self._processes:
            self._processes[pid].say(f"{line}\n".encode())

    def release(self, pid: int) -> None:
        """Let a process end."""
        if pid in self._processes:
            self._processes[pid].release()
            self._forget_ended()

    def keep(self, wanted: Keep, descriptors: Sequence[int]) -> None:
        """Keep something in place of what its name stood for."""
        before = self._kept.get(wanted.name)
        started = self._processes.get(wanted.pid) if wanted.pid is not None else None
        self._kept[wanted.name] = Held(
            wanted.note,
            tuple(descriptors),
            tuple(wanted.paths),
            None if started is None else wanted.pid,
            None if started is None else started.descriptor,
        )
        for descriptor in () if before is None else before.descriptors:
            os.close(descriptor)
        self._forget_ended()

    def status_of(self, pid: int) -> int:
        """Return how a process has ended; one that nobody knows was killed."""
        started = self._processes.get(pid)
        return -signal.SIGKILL if started is None or started.status is None else started.status

    # --- the parent's own

    def held(self) -> dict[str, Held]:
        """Return what is kept, by name."""
        return dict(self._kept)

    def ended(self, pid: int, status: int) -> None:
        """Note how a process has ended."""
        if pid in self._processes:
            self._processes[pid].status = status

    def part(self) -> None:
        """The process that serves has died: tell those that are kept, end the others."""
        kept = {held.pid for held in self._kept.values()}
        for pid, started in self._processes.items():
            if pid in kept:
                started.say(b"\n")
            else:
                self._kill(pid, started)

    def end(self, *, remove_paths: bool = True) -> None:
        """End all, and let go of what is kept."""
        for pid, started in self._processes.items():
            self._kill(pid, started)
        for held in self._kept.values():
            for path in held.paths if remove_paths else ():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for descriptor in held.descriptors:
                os.close(descriptor)
        self._kept.clear()

    @property
    def pids(self) -> list[int]:
        """The processes that were started, but for those that were let go of and have ended."""
        return list(self._processes)

    @property
    def are_alive(self) -> bool:
        """Say whether any process has not ended."""
        return any(started.status is None for started in self._processes.values())

    def close_inputs(self) -> None:
        """In a forked process: hold nobody's standard input open."""
        for started in self._processes.values():
            started.release()

    def _kill(self, pid: int, started: _Started) -> None:
        started.release()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if started.leader:
                os.killpg(pid, signal.SIGKILL)  # frozen ranks below it, too
            elif started.status is None:
                os.kill(pid, signal.SIGKILL)

    def _forget_ended(self) -> None:
        kept = {held.pid for held in self._kept.values()}
        for pid, started in list(self._processes.items()):
            if started.status is not None and started.input is None and pid not in kept:
                os.close(started.descriptor)
                del self._processes[pid]
