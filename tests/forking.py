"""Lets `subprocess` start the engine's processes by fork, where that equals a new Python.

A start of `engine serve` imports torch and the web framework in three processes, which takes longer
than all that a test does with the server. Tests of what a start takes or imports use the fixture
`new_interpreters`; with the option of that name, as in `make test-all`, nothing is forked.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from tests import fork_server
from tests.fork_server import (
    MAX_COMMAND_BYTES,
    MAX_REQUEST_BYTES,
    can_fork,
    read_at_import,
)

_PR_SET_CHILD_SUBREAPER: Final = 36
_Popen: Final = subprocess.Popen
_EXECUTE: Final = getattr(_Popen, "_execute_child", lambda: None)
"""A private method: with a Python that has another one, nothing is forked."""
_SIGNATURE: Final = inspect.signature(_EXECUTE)
_ENDS: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_NAMES: Final = "args executable preexec_fn close_fds pass_fds cwd env shell umask"
_READ: Final = {*_ENDS, *_NAMES.split(), "start_new_session", "process_group"}


class ForkServer:
    """The fork server of this process, started with the first process that it forks."""

    def __init__(self) -> None:
        self.is_enabled = True
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.set_environment(os.environ)

    def set_environment(self, environment: Mapping[str, str]) -> None:
        """Set the fork server's variables; at its start a test may have changed the process's."""
        self._environment = dict(environment)
        self._variables = read_at_import(environment)

    def fork(self, call: Mapping[str, Any]) -> int | None:
        """Return the pid of a forked process; None if a new Python must be started.

        `call` has the arguments of `subprocess.Popen._execute_child` by name.
        """
        command = call["args"]
        environment = dict(os.environ if call["env"] is None else call["env"])
        if not (
            self.is_enabled
            and isinstance(command, list | tuple)
            and all(isinstance(word, str) for word in command)
            and _is_plain(call)
            and can_fork(command, environment, self._variables)
        ):
            return None
        files = {0: call["p2cread"], 1: call["c2pwrite"], 2: call["errwrite"]}
        files = {number: number if fd == -1 else fd for number, fd in files.items()}
        files |= {int(fd): int(fd) for fd in call["pass_fds"]}
        if any(os.isatty(fd) for fd in files.values()):
            return None
        request = {
            "command": list(command),
            "environment": environment,
            "cwd": os.fspath(call["cwd"] or os.getcwd()),
            "numbers": list(files),
            "session": bool(call["start_new_session"]),
            "group": call["process_group"],
        }
        message = json.dumps(request).encode()
        if len(message) > MAX_REQUEST_BYTES:
            return None
        with self._lock:
            if self._process is None:
                self._open()
            return self._send(message, list(files.values()))

    def close(self) -> None:
        """End the fork server; the processes that it forked stay."""
        with self._lock:
            if self._process is not None:
                self._socket.close()
                self._process.wait()
                self._process = None

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        room = "-" * MAX_COMMAND_BYTES  # for the command lines of its forks
        self._process = _Popen(
            [sys.executable, "-P", fork_server.__file__, str(theirs.fileno()), room],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=self._environment,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        atexit.register(self.close)

    def _send(self, request: bytes, files: list[int]) -> int:
        # A fork's parent ends at once, and this process adopts the fork.
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            self._socket.sendmsg([request], [rights])
            return int(self._socket.recv(64))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _is_plain(call: Mapping[str, Any]) -> bool:
    return (
        call["executable"] is None
        and call["preexec_fn"] is None
        and call["close_fds"]
        and not call["shell"]
        and call["umask"] < 0
        and (call["cwd"] is None or os.path.isdir(call["cwd"]))
    )


SERVER: Final = ForkServer()


class ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` with a fork in place of a new Python where both are equal."""

    def _execute_child(self, *args: Any) -> None:
        call = _SIGNATURE.bind(self, *args).arguments
        pid = SERVER.fork(call)
        if pid is None:
            super()._execute_child(*args)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*(call[name] for name in _ENDS))  # type: ignore[attr-defined]


def install() -> None:
    """Let `subprocess` fork from now on, with this process's variables."""
    if sys.platform == "linux" and _SIGNATURE.parameters.keys() >= _READ:
        SERVER.set_environment(os.environ)
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
