"""Forks of the parent process, and the signals that it gets."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from builtin_plugins.commands.serve.system import return_large_buffers
from core.api import EngineConfig
from core.api.serving import setup_logging

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Forks:
    """Forks child processes; the parent's signals arrive through a pipe."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.selector: Final = selectors.DefaultSelector()
        """What the parent waits for; the data of a key is its callback."""
        self._previous: dict[int, Any] = {}

    def open(self, on_signal: Callable[[], None]) -> None:
        """Open the pipes and record signals from now on."""
        self._signal_read, self._signal_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.liveness_read, self._liveness_write = os.pipe()
        self.selector.register(self._signal_read, selectors.EVENT_READ, on_signal)
        self._previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._signal_write, warn_on_full_buffer=False)

    def close(self) -> None:
        """Close the selector and the liveness pipe."""
        self.selector.close()
        for descriptor in (self.liveness_read, self._liveness_write):
            os.close(descriptor)

    def restore_signals(self) -> None:
        """Restore the signal handlers from before `open`."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def read_signals(self) -> bytes:
        """Return the numbers of new signals. Raises `BlockingIOError` if there are none."""
        return os.read(self._signal_read, 4096)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for an event and call its callback."""
        for key, _ in self.selector.select(timeout_s):
            key.data()

    def fork(self, name: str, close_inherited: Callable[[], None]) -> int:
        """Fork; return the child's pid, or 0 in the child, where signals and descriptors are
        reset.

        `close_inherited` closes further descriptors in the child.
        """
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()  # otherwise both processes write the buffer
        # Block signals until the child has reset its handlers; this
        # process only records them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            # in parent and child, so that terminal signals reach the parent only
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self._log_as("parent")
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(name)
        return_large_buffers()
        self._log_as("")
        self.selector.close()
        for descriptor in (self._signal_read, self._signal_write, self._liveness_write):
            os.close(descriptor)
        close_inherited()
        return 0

    def _log_as(self, process: str) -> None:
        observability = self._config.observability
        setup_logging(observability.log_level, log_format=observability.log_format, process=process)


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process or its group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)
