"""Log lines of the parent process, which a file or terminal may never take."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

LOG_S: Final = 2.0
"""Longest wait for standard error to take a line, in seconds."""
POLL_S: Final = 0.002
NAME: Final = "engine-log"
"""Name of the process in `ps -o comm`."""


class ParentLog:
    """Writes each line in a process of its own; drops lines while an earlier one is not written.

    A thread would not do: processes are forked from this one, and it would hold the locks of
    standard error.
    """

    def __init__(self) -> None:
        self.pid = 0
        """The process that writes a line; 0: none. Set it to 0 when the process is collected."""

    def write(self, write_line: Callable[[], None]) -> None:
        """Call `write_line`, and wait until it has written, at most `LOG_S`."""
        if _is_pipe():
            write_line()  # the handler drops what a full pipe has no room for
            return
        if self.pid and not self._has_ended():
            return
        self.pid = os.fork()
        if not self.pid:
            _write_and_exit(write_line)
        until_s = time.monotonic() + LOG_S
        while not self._has_ended() and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def _has_ended(self) -> bool:
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return not self.pid


def _is_pipe() -> bool:
    """Return whether standard error is a pipe; also if it is closed, or no file."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return True


def _write_and_exit(write_line: Callable[[], None]) -> NoReturn:
    """Write a line and end. A stuck process must not hold the pipes that show the parent's end."""
    try:
        signal.set_wakeup_fd(-1)
        Path("/proc/self/comm").write_text(NAME)
        descriptor = sys.stderr.fileno()
        os.closerange(0, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        write_line()
        sys.stderr.flush()
    finally:
        os._exit(0)
