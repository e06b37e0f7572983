"""The parent process: supervises the API process, restarts it, and preserves the engine.

Single-threaded; imports no model and no server. The API process is forked from it, so it starts
with plugins loaded and configuration read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from builtin_plugins.commands.serve.child_processes import ChildProcesses
from builtin_plugins.commands.serve.control_socket import ControlSocket
from builtin_plugins.commands.serve.end_deadline import EndDeadline
from builtin_plugins.commands.serve.forks import Forks, send_signal
from builtin_plugins.commands.serve.maintenance import MaintenanceServer
from builtin_plugins.commands.serve.parent_handle import ParentHandle
from builtin_plugins.commands.serve.parent_log import ParentLog
from builtin_plugins.commands.serve.system import (
    limit_allocations,
    remove_folders_of,
    resident_bytes,
    used_seconds,
)
from builtin_plugins.commands.sizes import show_bytes
from core.api import EngineConfig

log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
"""Interval of memory checks in seconds."""
STEADY_S: Final = 10.0
"""Uptime in seconds after which the crash counter resets."""
LONGEST_PAUSE_S: Final = 5.0
"""Maximum pause in seconds between two starts of a crashing API process."""
SLOWDOWN: Final = 2.0
"""How much slower than on an idle core a start may be."""
NAME: Final = "engine-api"
"""Name of the API process in `ps -o comm`."""


def can_supervise() -> bool:
    """Return whether this process can be the parent: pidfd is available and there are no other
    threads.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return threading.active_count() == 1


class Parent:
    """Supervises one API process at a time."""

    def __init__(self, config: EngineConfig, limit_bytes: int) -> None:
        self._config = config
        self._limit_bytes = limit_bytes
        self._children = ChildProcesses()
        self._forks = Forks(config)
        self._log = ParentLog()
        self._control_socket = ControlSocket(self, self._children, self._forks.selector)
        self._maintenance = MaintenanceServer(
            config, self._forks, self._children, self._close_inherited
        )
        self._pid = 0
        self._status: int | None = None
        """Exit status of the API process."""
        self._has_served = False
        """Whether any API process was ever up."""
        self._restarts = self._crash_count = 0
        self._since_s = self._ready_since_s = inf
        self._start_s = 1.0
        """Duration of the last start, or its estimate without loading an engine."""
        self._deadline = EndDeadline(config.options.get("shutdown_timeout"))
        self._was_signalled = False
        """Whether the first signal was forwarded to the server."""
        self._check_s = inf
        self._reason = ""
        self._last_line: Callable[[], None] | None = None
        """Logs the end, once all processes below have ended."""

    def run(self) -> ParentHandle | int:
        """Return the exit status (in the parent), or the handle (in each API process)."""
        self._forks.open(self._on_signal)
        status: int | None = None
        while status is None:
            parent_end, child_end = socket.socketpair()
            self._pid = self._forks.fork(NAME, self._close_inherited)
            if not self._pid:
                parent_end.close()
                return ParentHandle(
                    child_end,
                    self._forks.liveness_read,
                    self._children.preserved(),
                    self._restarts,
                )
            child_end.close()
            try:
                self._follow(parent_end)
                status = self._exit_status()
            except BaseException:
                self._end()
                raise
            self._restarts += 1
        self._end()
        self._forks.restore_signals()
        if self._last_line is not None:
            self._log.write(self._last_line)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status

    # --- child processes

    def _close_inherited(self) -> None:
        """Close the parent's descriptors in a forked process."""
        self._control_socket.close_in_child()
        self._children.close_inputs()

    def reap(self) -> None:
        """Collect ended child processes."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._pid:
                self._status = code
            elif pid == self._maintenance.pid:
                self._maintenance.pid = 0
            elif pid == self._log.pid:
                self._log.pid = 0
            else:
                self._children.ended(pid, code)

    # --- supervision of the API process

    def _follow(self, connection: socket.socket) -> None:
        """Serve its requests, forward signals and check its memory until it ends."""
        self._since_s = time.monotonic()
        self._ready_since_s = inf
        self._check_s = 0.0
        self._status = None
        self._reason = ""
        self._control_socket.open(connection)
        if self._is_bounded:
            limit_allocations(self._pid, self._limit_bytes)
        while not self._has_ended:
            self._forks.wait(CHECK_S if self._limit_bytes or self._deadline.is_set else None)
            self._check_memory()
            if self._deadline.is_over():
                self._reason = "it did not end in time after a signal and was killed"
                send_signal(self._pid, signal.SIGKILL, group=True)
        self._control_socket.close()

    @property
    def _has_ended(self) -> bool:
        return self._status is not None

    @property
    def _is_bounded(self) -> bool:
        """Return whether memory is limited: a process that launched no engine may be the engine
        itself.
        """
        return self._limit_bytes > 0 and self._children.are_alive

    def _on_signal(self) -> None:
        """Forward signals."""
        with contextlib.suppress(BlockingIOError):
            numbers = self._forks.read_signals()
            self.reap()  # first, so that signals for an ended process end the parent
            for number in numbers:
                if number == signal.SIGCHLD:
                    continue
                self._deadline.on_signal()
                if not self._has_ended:
                    self._was_signalled = True
                    send_signal(self._pid, number)

    def _check_memory(self) -> None:
        now_s = time.monotonic()
        if not self._is_bounded or now_s < self._check_s or self._has_ended:
            return
        self._check_s = now_s + CHECK_S
        taken_bytes = resident_bytes(self._pid)
        if taken_bytes > self._limit_bytes:
            limit = show_bytes(self._limit_bytes)
            self._reason = (
                f"it took {show_bytes(taken_bytes)} of memory, more than {limit} "
                "(--api-memory-limit)"
            )
            send_signal(self._pid, signal.SIGKILL, group=True)

    # --- requests of the API process

    def on_launch(self) -> None:
        """Limit the API process's memory: it has launched its engine."""
        if self._limit_bytes:
            limit_allocations(self._pid, self._limit_bytes)

    def on_drained(self) -> None:
        """Note that the server has stopped."""
        self._deadline.on_drained()

    def on_leave(self, status: int) -> None:
        """Note that the API process will exit."""
        self._deadline.on_leave(status)

    def on_serving(self, maintenance_target: str) -> None:
        """Note that the server is up, and end the maintenance server."""
        self._ready_since_s = time.monotonic()
        self._maintenance.target = maintenance_target
        self._maintenance.stop()
        if self._has_served:
            self._start_s = self._ready_since_s - self._since_s
            message = "the API process is back (restart %d) after %.1f s"
            log.warning(message, self._restarts, self._start_s)
        else:
            self._start_s = SLOWDOWN * used_seconds(self._pid)
        self._has_served = True

    # --- its exit

    def _exit_status(self) -> int | None:
        """Return the final exit status; None: restart the API process."""
        status = self._status or 0
        if self._deadline.status is not None:
            return status if status >= 0 else self._deadline.status
        how = self._reason or (
            f"it exited with status {status}" if status >= 0 else _killed_by(-status)
        )
        was_ready = self._ready_since_s < inf
        if self._was_signalled:
            if not self._has_served:
                return status if status in (-signal.SIGTERM, -signal.SIGINT) else 1
            is_lossless = self._deadline.has_drained
            if is_lossless or was_ready:
                requests = "without" if is_lossless else "with"
                message = "the API process (pid %d) died %s open requests: %s"
                self._last_line = partial(log.error, message, self._pid, requests, how)
            return int(was_ready and not is_lossless)
        if not self._has_served:
            if status < 0:
                message = f"the API process (pid {self._pid}) died during its start: {how}."
                self._log.write(partial(print, f"engine: error: {message}", file=sys.stderr))
            return 1
        return self._prepare_restart(how)

    def _prepare_restart(self, how: str) -> int | None:
        """Prepare a restart, or give up."""
        is_steady = time.monotonic() - self._ready_since_s > STEADY_S
        self._crash_count = 1 if is_steady else self._crash_count + 1
        message = "the API process (pid %d) died and is restarted: %s"
        self._log.write(partial(log.error, message, self._pid, how))
        limit = self._config.service.max_restarts
        if self._crash_count > limit:
            message = "it died %d times in a row (--max-restarts %d), giving up"
            self._log.write(partial(log.error, message, self._crash_count, limit))
            return 1
        self._children.on_server_exit()
        pause_s = min(LONGEST_PAUSE_S, 0.05 * (2 ** (self._crash_count - 1) - 1))
        until_s = time.monotonic() + pause_s
        self._maintenance.start(until_s + self._start_s)
        while time.monotonic() < until_s and not self._deadline.num_signals:
            self._forks.wait(max(0.0, until_s - time.monotonic()))
        return 0 if self._deadline.num_signals else None

    def _end(self) -> None:
        """Clean up; an API process that announced its exit has removed its own files."""
        self._children.end(remove_paths=self._deadline.status is None)
        for pid in (self._pid if self._status is None else 0, self._maintenance.pid):
            if pid:
                send_signal(pid, signal.SIGKILL, group=True)
        while self._children.are_alive or self._maintenance.pid:
            self._forks.wait(CHECK_S)
            self.reap()
        remove_folders_of({os.getpid(), self._pid, *self._children.pids})
        self._control_socket.close()
        self._forks.close()


def _killed_by(number: int) -> str:
    with contextlib.suppress(ValueError):
        name = signal.Signals(number).name
        more = ", externally or by the OOM killer (see `dmesg`)" if name == "SIGKILL" else ""
        return f"it was killed by {name}{more}"
    return f"it was killed by signal {number}"
