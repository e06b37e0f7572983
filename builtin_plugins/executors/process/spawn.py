"""The parent's side of a subprocess: start it, receive its
messages, end it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import core
from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Connected, Failed, Start
from builtin_plugins.platforms.api import oom_kill_count
from core.api import EngineDead
from core.api.execution import ProcessKilled

TICK_S: Final = 0.1
"""Interval in seconds at which a waiting parent checks that its
child lives.
"""
FIRST_STAGE: Final = "starting Python"
HOME: Final = str(Path(core.__file__).parent)
"""Folder of this process's `core` package."""


class Child:
    """One subprocess, running `start.target`.

    With `leader` it leads a process group: Ctrl-C at the terminal does not reach it,
    and killing it kills its own children, too. `launch` has the signature of
    `subprocess.Popen`.
    """

    def __init__(
        self,
        start: Start,
        kinds: Any,
        *,
        leader: bool = True,
        environment: Mapping[str, str] | None = None,
        launch: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self.name = start.process
        self.host = ""
        self._stage = FIRST_STAGE
        self.channel = Channel.listen(kinds)
        self._leader = leader
        self._started_s = time.monotonic()
        self._oom_kills = oom_kill_count()
        # A socket's last message may be lost in a crash; the contents of a pipe are
        # not.
        reading, writing = os.pipe()
        self._stages = os.fdopen(reading, "rb", buffering=0)
        os.set_blocking(reading, False)
        module = ["-P", "-m", "builtin_plugins.executors.process.child"]
        self.process = launch(
            [sys.executable, *module, self.channel.folder, HOME, str(writing)],
            stdin=subprocess.PIPE,  # closes when the parent ends
            env={**_short_spin(), **os.environ, **(environment or {})},
            process_group=0 if leader else None,
            pass_fds=(writing,),
        )
        os.close(writing)
        self.channel.send(start)

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def stage(self) -> str:
        """The current start-up stage."""
        data = b"" if self._stages.closed else self._stages.read() or b""
        self._stage = data.decode().rpartition("\n")[0].rpartition("\n")[2] or self._stage
        return self._stage

    @property
    def label(self) -> str:
        """Name, process id and stage, for error messages."""
        return f"{self.name!r} (pid {self.pid}, {self.stage})"

    @property
    def is_alive(self) -> bool:
        """True while it runs, even if it is frozen."""
        return self.process.poll() is None

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended it: another process, or the out-of-memory
        killer.
        """
        return self.process.poll() == -signal.SIGKILL

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one as bytes; never blocks."""
        self.channel.send(message)

    def receive(self, timeout_s: float = TICK_S) -> Any:
        """Return the next message of the child's role, or None after the
        timeout.

        Raises the child's `EngineError`, or one with its exit reason if it could not
        send any.
        """
        # checked first: messages before its end are still received
        alive = self.is_alive
        message = self.channel.receive(timeout_s if alive else 0)
        if isinstance(message, Failed):
            raise message.error()
        if isinstance(message, Connected):
            self.channel.hide()
            return None
        if message is None and not alive:
            raise (ProcessKilled if self.was_killed else EngineDead)(self.exit_reason())
        return message

    @property
    def may_be_oom(self) -> bool:
        """True if the out-of-memory killer was active in this process's group
        since the start, or if that is unknown.
        """
        return self._oom_kills is None or oom_kill_count() != self._oom_kills

    def exit_reason(self) -> str:
        """Return the stage, cause and time of an unannounced end."""
        status = self.process.wait()
        if status >= 0:
            cause = f"it exited with status {status}"
        else:
            cause = f"it was killed by {signal.Signals(-status).name}"
        if self.was_killed:
            cause += ", from outside or by the out-of-memory killer (see `dmesg`)"
        return (
            f"process {self.name!r} (pid {self.pid}) has ended\n  stage: {self.stage}\n"
            f"  cause: {cause}, {time.monotonic() - self._started_s:.1f} s after its start"
        )

    def kill(self) -> None:
        """Kill it at once, frozen or not; with `leader` its whole process
        group.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leader:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def close(self, grace_s: float = 0.0) -> None:
        """Wait up to `grace_s` for its end, then kill it.

        May be called twice.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        self.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._stages.close()
        self.channel.close()


def _short_spin() -> dict[str, str]:
    """Return the environment that limits the spinning of OpenMP threads to
    microseconds.

    By default GCC's runtime spins for milliseconds, which takes cores from other
    threads.
    """
    return {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}


def thread_environment(num_threads: int) -> dict[str, str]:
    """Return the environment of a process that computes with this number of
    threads.

    OpenMP and BLAS read it when they are loaded, so it cannot be set later.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(num_threads))
