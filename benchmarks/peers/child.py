"""One process that is measured: started, asked line by line, stopped while it is another's turn."""

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
"""From waking a process to asking it: whatever its threads do after a stop is over."""
GOODBYE_S: Final = 20.0


class ChildEndedError(Exception):
    """A measured process has ended when it should have answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process said, and what the machine did meanwhile."""

    content: Mapping[str, Any]
    elapsed_s: float
    cores: float
    """Mean cores that the process and its children used."""
    others: float
    """Mean cores that everything else used."""


class Child:
    """A process and its children.

    All but one that is asked are stopped, so they cost no core, only memory.
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

        The file gets its error output, and all that it prints when it is not one that answers.
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
        """End the process and its children, by force those that do not go. Safe to call twice."""
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
        """Return the ids of the process and its children."""
        return machine.process_tree(self.process.pid)

    def pause(self) -> None:
        """Stop the process and its children where they are."""
        for pid in self.family():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on, and wait until they have."""
        for pid in self.family():
            _signal(pid, signal.SIGCONT)
        time.sleep(SETTLE_S)

    def pss_bytes(self) -> int:
        """Return the memory of the process and its children."""
        return machine.pss_bytes(self.family())

    def hear(self) -> Mapping[str, Any]:
        """Return the next line that the process says.

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

    def ask(self, request: Mapping[str, Any]) -> Answer:
        """Send one line and wait for the answer. The process has to be running."""
        assert self.process.stdin is not None
        line = json.dumps(request) + "\n"
        own_s = machine.cpu_s(self.family())
        all_s = machine.busy_s()
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # `hear` says what happened
            self.process.stdin.write(line)
            self.process.stdin.flush()
        content = self.hear()
        elapsed_s = time.monotonic() - began
        own_s = machine.cpu_s(self.family()) - own_s
        all_s = machine.busy_s() - all_s
        return Answer(content, elapsed_s, own_s / elapsed_s, max(0.0, all_s - own_s) / elapsed_s)


def unwind_on_terminate() -> None:
    """Make SIGTERM end this process as an error does, so that children are ended: a stopped one
    would stay for ever.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
