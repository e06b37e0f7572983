"""Child process of a comparison: started, called line by line, and paused between its turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.peers import machine

SETTLE_S: Final = 0.3
"""Pause in seconds between resuming a process and calling it."""
GOODBYE_S: Final = 20.0


class ChildEndedError(Exception):
    """A child ended while it should answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response line, and the machine load meanwhile."""

    content: Mapping[str, Any]
    elapsed_s: float
    cores: float
    """Mean cores used by the process and its children."""
    others: float
    """Mean cores used by all other processes."""


class Child:
    """A process and its children.

    Only the called one runs; all others are paused and use memory but no cores.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        answers: bool = True,
    ) -> None:
        """Start the process.

        The log file gets its standard error, and its standard output if it does not answer.
        """
        self.name = name
        self.began = time.monotonic()
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else file,
                stderr=file,
                text=True,
                env={**os.environ, **(env or {})},
            )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process and its children, by force after a timeout. Idempotent."""
        assert self.process.stdin is not None
        family = self.family()
        self.resume()
        if self.process.stdout is not None:
            self.process.stdout.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.terminate()
            self.process.wait(GOODBYE_S)
        for pid in family:
            _signal(pid, signal.SIGKILL)
        self.process.wait()

    def family(self) -> list[int]:
        """Return the pids of the process and its children."""
        return machine.process_tree(self.process.pid)

    def pause(self) -> None:
        """Pause the process and its children."""
        for pid in self.family():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process and its children, and wait until they run."""
        for pid in self.family():
            _signal(pid, signal.SIGCONT)
        time.sleep(SETTLE_S)

    def pss_bytes(self) -> int:
        """Return the memory of the process and its children in bytes."""
        return machine.pss_bytes(self.family())

    def hear(self) -> Mapping[str, Any]:
        """Return the next output line.

        Raises `ChildEndedError` with the end of its log.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-6:])
            raise ChildEndedError(
                f"{self.name} has ended; the last lines of {self._log} are:\n{end}"
            )
        content: Mapping[str, Any] = json.loads(line)
        return content

    def hear_s(self) -> float:
        """Wait for the first line; return the seconds since the start of the process."""
        self.hear()
        return time.monotonic() - self.began

    def call(self, request: Mapping[str, Any]) -> Answer:
        """Send one line and return the response. The process must be running."""
        assert self.process.stdin is not None
        line = json.dumps(request) + "\n"
        own_s = machine.cpu_s(self.family())
        all_s = machine.busy_s()
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # `hear` reports the cause
            self.process.stdin.write(line)
            self.process.stdin.flush()
        content = self.hear()
        elapsed_s = time.monotonic() - began
        own_s = machine.cpu_s(self.family()) - own_s
        all_s = machine.busy_s() - all_s
        return Answer(content, elapsed_s, own_s / elapsed_s, max(0.0, all_s - own_s) / elapsed_s)


def unwind_on_terminate() -> None:
    """Turn SIGTERM into an exception, so that paused children are ended."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
