"""The parent's side of a process: start it, hear of it, end it. Nobody outlives who started it."""

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

from core.errors import EngineDead, ProcessKilled
from core.process.channel import Channel
from core.process.messages import Connected, Failed, Start

TICK_S: Final = 0.1
"""How often a waiting parent looks whether its child lives."""
FIRST_STAGE: Final = "starting Python"
VMSTAT: Final = Path("/proc/vmstat")
HOME: Final = str(Path(__file__).parents[1])
"""Where this process has the engine's code from."""


class Child:
    """One process, running `start.target`.

    With `leader` it leads a process group of its own: a Ctrl-C at the terminal passes it by, and
    killing it kills what it has started, too. `launch` is called as `subprocess.Popen` is and
    returns the like of it.
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
        self._stage = FIRST_STAGE
        self.channel = Channel.listen(kinds)
        self._leader = leader
        self._since_s = time.monotonic()
        self._memory_kills = memory_kills()
        reading, writing = (
            os.pipe()
        )  # a socket's last message may be lost with its process, what is in a pipe is not
        self._stages = os.fdopen(reading, "rb", buffering=0)
        os.set_blocking(reading, False)
        self.process = launch(
            [
                sys.executable,
                "-P",
                "-m",
                "core.process.child",
                self.channel.folder,
                HOME,
                str(writing),
            ],
            stdin=subprocess.PIPE,  # its end tells the child that we have ended
            env={**_short_spin(), **os.environ, **(environment or {})},
            process_group=0 if leader else None,
            pass_fds=(writing,),
        )
        os.close(writing)
        self.channel.send(start)

    @property
    def pid(self) -> int:
        """The process' number."""
        return self.process.pid

    @property
    def stage(self) -> str:
        """What it has last begun to do, until it is ready."""
        said = b"" if self._stages.closed else self._stages.read() or b""
        self._stage = said.decode().rpartition("\n")[0].rpartition("\n")[2] or self._stage
        return self._stage

    @property
    def is_alive(self) -> bool:
        """Say whether it still runs; a frozen one does."""
        return self.process.poll() is None

    @property
    def was_killed(self) -> bool:
        """Say whether SIGKILL ended it: somebody outside, or the system for want of memory."""
        return self.process.poll() == -signal.SIGKILL

    def receive(self, timeout_s: float = TICK_S) -> Any:
        """Return the next message of the child's role, or None when none came in time.

        Raises the `EngineError` the child ends with, and one that says how it ended if it could not
        say so itself.
        """
        alive = self.is_alive  # asked first: what it sent before its end is still to be read
        message = self.channel.receive(timeout_s if alive else 0)
        if isinstance(message, Failed):
            raise message.error()
        if isinstance(message, Connected):
            self.channel.hide()
            return None
        if message is None and not alive:
            raise (ProcessKilled if self.was_killed else EngineDead)(self.obituary())
        return message

    @property
    def lacked_memory(self) -> bool:
        """Say whether the system has killed any process for want of memory since this one's start,
        or may have.
        """
        return self._memory_kills is None or memory_kills() != self._memory_kills

    def obituary(self) -> str:
        """Return what is known of an end nobody announced: the stage it was in, how and when it
        ended.
        """
        status = self.process.wait()
        cause = (
            f"it exited with status {status}"
            if status >= 0
            else f"it was killed by {signal.Signals(-status).name}"
        )
        if self.was_killed:
            cause += ", by somebody or by the system for want of memory (`dmesg` tells)"
        return (
            f"process {self.name!r} (pid {self.pid}) has ended\n  stage: {self.stage}\n"
            f"  cause: {cause}, {time.monotonic() - self._since_s:.1f} s after its start"
        )

    def kill(self) -> None:
        """End it at once, and, if it leads a group, all of that; frozen ones too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leader:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def close(self, grace_s: float = 0.0) -> None:
        """Wait `grace_s` for it to end by itself, then kill it; nothing of it is left.

        Safe to call twice.
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
    """Return how long waiting OpenMP threads may spin: some microseconds.

    GCC's runtime lets them for milliseconds, which on cores that others use as well are taken from
    those they wait for.
    """
    return {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}


def thread_environment(num_threads: int) -> dict[str, str]:
    """Return the environment of a process that computes with `num_threads` threads and must leave
    others theirs.

    Read by OpenMP and BLAS when they are loaded, so it cannot be set later.
    """
    return dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(num_threads)
    )


def memory_kills(vmstat: Path = VMSTAT) -> int | None:
    """Return how many processes the system has killed for want of memory since it started; None if
    it does not say.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
