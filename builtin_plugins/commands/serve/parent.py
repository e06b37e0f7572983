"""The small parent: starts the process that serves, and again when it dies; keeps what must outlive
it.

Single-threaded, imports no model and no server, and computes nothing: what may go wrong goes wrong
below it. The process that serves is forked from it, so each of its lives begins with plugins loaded
and configuration read.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import Any, Final

from builtin_plugins.commands.serve.charges import Charges
from builtin_plugins.commands.serve.child import Handle, end_with
from builtin_plugins.commands.serve.folders import remove_folders_of
from builtin_plugins.commands.serve.memory import (
    keep_no_large_pieces,
    limit_allocations,
    resident_bytes,
    used_seconds,
)
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
from builtin_plugins.commands.sizes import show_bytes
from core.api import EngineConfig
from core.logs import setup_logging

log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
"""How often memory is looked at."""
ANSWER_S: Final = 10.0
"""For a process that asks to ask to the end."""
STEADY_S: Final = 10.0
"""Of a life that is no part of a row of deaths."""
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to start a process that does not stay up."""
SLOWER: Final = 2.0
"""Than on a core of its own it may be."""
FORCE_S: Final = 10.0
"""After the second signal; who has not ended then is killed."""
NAMES: Final = ("engine-api", "engine-stand-in")
"""Of the process that serves, and of the one that says that nobody does, in `ps -o comm`."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def can_watch() -> bool:
    """Say whether this process may be such a parent: on a system with what it takes, and without
    other threads.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return threading.active_count() == 1


class Parent:
    """Watches one process that serves at a time."""

    def __init__(self, config: EngineConfig, limit_bytes: int) -> None:
        self._config = config
        self._limit_bytes = limit_bytes
        self._charges = Charges()
        self._selector = selectors.DefaultSelector()
        self._desk: socket.socket | None = None
        """Where the process that serves asks."""
        self._pid = 0
        self._status: int | None = None
        """How it has ended."""
        self._has_left = False
        """It has said that this is on purpose."""
        self._has_served = False
        """In any of its lives."""
        self._stand_in = ""
        self._stand_in_pid = 0
        self._restarts = self._deaths_in_a_row = 0
        self._since_s = self._ready_since_s = inf
        self._start_s = 1.0
        """What its last start took, or would have without an engine to load."""
        self._num_signals = 0
        self._was_told = False
        """Who served at the first of them has got it."""
        self._force_s = self._check_s = inf
        self._reason = ""

    def run(self) -> Handle | int:
        """Return the status to end with, in this process; in each process that is to serve, its
        handle.
        """
        self._bell, self._button = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lifeline, self._life = os.pipe()
        self._selector.register(self._bell, selectors.EVENT_READ, self._hear)
        previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._button, warn_on_full_buffer=False)
        status: int | None = None
        while status is None:
            mine, theirs = socket.socketpair()
            self._pid = self._fork(NAMES[0])
            if not self._pid:
                mine.close()
                return Handle(theirs, self._lifeline, self._charges.held(), self._restarts)
            theirs.close()
            try:
                self._follow(mine)
                status = self._judge()
            except BaseException:
                self._end()
                raise
            self._restarts += 1
        self._end()
        signal.set_wakeup_fd(-1)
        for number, handler in previous.items():
            signal.signal(number, handler)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status

    # --- processes below

    def _fork(self, name: str) -> int:
        """Return the number of a new process; in it, 0: signals, the terminal and descriptors are
        left to the parent.
        """
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()  # or both would write what it holds
        # One that is passed on at once waits until the child does not take it as this process does,
        # which is to note it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            with contextlib.suppress(
                OSError
            ):  # whoever is first: no signal from a terminal passes us by
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
        keep_no_large_pieces()
        self._log_as("")
        self._selector.close()
        for descriptor in (self._bell, self._button, self._life):
            os.close(descriptor)
        if self._desk is not None:
            self._desk.close()
        self._charges.close_inputs()
        return 0

    def _log_as(self, process: str) -> None:
        observability = self._config.observability
        setup_logging(observability.log_level, log_format=observability.log_format, process=process)

    def _reap(self) -> None:
        """Take note of who has ended."""
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
            elif pid == self._stand_in_pid:
                self._stand_in_pid = 0
            else:
                self._charges.ended(pid, code)

    def _signal(self, pid: int, number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(pid, number)

    # --- the life of the process that serves

    def _follow(self, desk: socket.socket) -> None:
        """Do what it asks, pass signals on, watch its memory; return when it has ended."""
        self._since_s = time.monotonic()
        self._ready_since_s = inf
        self._check_s = 0.0
        self._status = None
        self._reason = ""
        self._desk = desk
        desk.settimeout(ANSWER_S)
        self._selector.register(desk, selectors.EVENT_READ, self._answer)
        if self._is_bounded:
            limit_allocations(self._pid, self._limit_bytes)
        while not self._has_ended:
            self._wait(CHECK_S if self._limit_bytes or self._num_signals else None)
            self._check_memory()
            if time.monotonic() > self._force_s:
                self._signal(self._pid, signal.SIGKILL, group=True)
        self._close_desk()

    @property
    def _has_ended(self) -> bool:
        return self._status is not None

    @property
    def _is_bounded(self) -> bool:
        """Say whether memory matters: a process that has launched no engine may be the engine
        itself.
        """
        return self._limit_bytes > 0 and self._charges.are_alive

    def _wait(self, most_s: float | None) -> None:
        for key, _ in self._selector.select(most_s):
            key.data()

    def _hear(self) -> None:
        """Pass signals on."""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._bell, 4096)
            self._reap()  # first: a signal to who has ended is one to us
            for number in numbers:
                if number == signal.SIGCHLD:
                    continue
                self._num_signals += 1
                if self._num_signals > 1:
                    self._force_s = min(self._force_s, time.monotonic() + FORCE_S)
                if not self._has_ended:
                    self._was_told = True
                    self._signal(self._pid, number)

    def _check_memory(self) -> None:
        now_s = time.monotonic()
        if not self._is_bounded or now_s < self._check_s or self._has_ended:
            return
        self._check_s = now_s + CHECK_S
        taken_bytes = resident_bytes(self._pid)
        if taken_bytes > self._limit_bytes:
            limit = show_bytes(self._limit_bytes)
            self._reason = f"it took {show_bytes(taken_bytes)} of memory, more than {limit} (--api-memory-limit)"
            self._signal(self._pid, signal.SIGKILL, group=True)

    def _answer(self) -> None:
        """Do one thing that the process that serves asks for."""
        desk = self._desk
        if desk is None:
            return
        answer = Answer()
        beside = list[int]()
        try:
            request, descriptors = receive(desk, Request)
            try:
                number, beside = self._do(request, descriptors)
                answer = Answer(number)
            except OSError as error:
                answer = Answer(error=f"the parent cannot do what is asked of it: {error}")
            send(desk, answer, beside)
        except (OSError, EOFError):
            self._close_desk()  # it has died, or will

    def _do(self, request: Any, descriptors: list[int]) -> tuple[int, list[int]]:
        """Return a number and descriptors."""
        match request:
            case Launch():
                pid, descriptor = self._charges.launch(request, descriptors)
                if self._limit_bytes:
                    limit_allocations(self._pid, self._limit_bytes)
                return pid, [descriptor]
            case Ended(pid):
                self._reap()
                return self._charges.status_of(pid), []
            case Tell(pid, line):
                self._charges.tell(pid, line)
            case Release(pid):
                self._reap()
                self._charges.release(pid)
            case Keep():
                self._charges.keep(request, descriptors)
            case Serving(stand_in):
                self._serves(stand_in)
            case Leave():
                self._has_left = True
        return 0, []

    def _serves(self, stand_in: str) -> None:
        self._ready_since_s = time.monotonic()
        self._stand_in = stand_in
        if self._stand_in_pid:
            self._signal(self._stand_in_pid, signal.SIGTERM)
        if self._has_served:
            self._start_s = self._ready_since_s - self._since_s
            log.warning(
                "the API process is back (restart %d) after %.1f s", self._restarts, self._start_s
            )
        else:
            self._start_s = SLOWER * used_seconds(self._pid)
        self._has_served = True

    def _close_desk(self) -> None:
        if self._desk is not None:
            self._selector.unregister(self._desk)
            self._desk.close()
            self._desk = None

    # --- its death

    def _judge(self) -> int | None:
        """Return what all end with, as processes do that signals end; None when the process is to
        be started again.
        """
        status = self._status or 0
        if self._has_left:
            return status if status >= 0 else 1
        how = self._reason or (
            f"it exited with status {status}" if status >= 0 else _killed_by(-status)
        )
        was_ready = self._ready_since_s < inf
        if self._was_told:
            if not self._has_served:
                return status if status in (-signal.SIGTERM, -signal.SIGINT) else 1
            if was_ready:
                log.error(
                    "the API process (pid %d) has died before its open requests had ended: %s",
                    self._pid,
                    how,
                )
            return int(was_ready)
        if not self._has_served:
            if status < 0:
                print(
                    f"engine: error: the API process (pid {self._pid}) has died in its start: "
                    f"{how}.",
                    file=sys.stderr,
                )
            return 1
        return self._bury(how)

    def _bury(self, how: str) -> int | None:
        """Prepare the next life, or give up."""
        is_steady = time.monotonic() - self._ready_since_s > STEADY_S
        self._deaths_in_a_row = 1 if is_steady else self._deaths_in_a_row + 1
        log.error("the API process (pid %d) has died, and is started again: %s", self._pid, how)
        most = self._config.service.max_restarts
        if self._deaths_in_a_row > most:
            log.error(
                "it died %d times in a row (--max-restarts %d), so all ends",
                self._deaths_in_a_row,
                most,
            )
            return 1
        self._charges.part()
        pause_s = min(LONGEST_PAUSE_S, 0.05 * (2 ** (self._deaths_in_a_row - 1) - 1))
        until_s = time.monotonic() + pause_s
        self._call_stand_in(until_s + self._start_s)
        while time.monotonic() < until_s and not self._num_signals:
            self._wait(max(0.0, until_s - time.monotonic()))
        return 0 if self._num_signals else None

    def _call_stand_in(self, back_s: float) -> None:
        """Let somebody tell clients that nobody serves."""
        if not self._stand_in or self._stand_in_pid:
            return
        self._stand_in_pid = self._fork(NAMES[1])
        if self._stand_in_pid:
            return
        try:
            threading.Thread(
                target=end_with, args=(self._lifeline, list), name="lifeline", daemon=True
            ).start()
            module, _, function = self._stand_in.partition(":")
            descriptors = {name: held.descriptors for name, held in self._charges.held().items()}
            getattr(importlib.import_module(module), function)(
                self._config.options, descriptors, back_s
            )
        except Exception:  # a plugin's, and whatever it raises ends this process only
            log.exception("nobody stands in for the API process; clients wait until it is back")
        finally:
            os._exit(0)

    def _end(self) -> None:
        """Leave nothing behind; who has left has removed its files itself, and they may be somebody
        else's by now.
        """
        self._charges.end(remove_paths=not self._has_left)
        for pid in (self._pid if self._status is None else 0, self._stand_in_pid):
            if pid:
                self._signal(pid, signal.SIGKILL, group=True)
        while self._charges.are_alive or self._stand_in_pid:
            self._wait(CHECK_S)
            self._reap()
        remove_folders_of({self._pid, *self._charges.pids})
        self._close_desk()
        self._selector.close()
        for descriptor in (self._lifeline, self._life):
            os.close(descriptor)


def _killed_by(number: int) -> str:
    with contextlib.suppress(ValueError):
        name = signal.Signals(number).name
        more = (
            ", by somebody or by the system for want of memory (`dmesg` tells)"
            if name == "SIGKILL"
            else ""
        )
        return f"it was killed by {name}{more}"
    return f"it was killed by signal {number}"
