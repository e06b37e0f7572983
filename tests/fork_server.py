"""A process that has imported the engine and its plugins, and forks the engine's processes from it.

Run by `tests.forking`. A fork has the parent, arguments, environment, descriptors and process group
of the process it stands for; all but the imports runs as in a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

ENGINE: Final = ("-P", "-c", "import sys; from core.cli.main import main; sys.exit(main())")
"""Arguments of Python that run `engine`."""
CHILD: Final = ("-P", "-m", "builtin_plugins.executors.process.child")
"""Arguments of Python that run an engine process."""
IMPORTED: Final = (
    "core.cli.main",
    "core.frontend.async_llm",
    "core.worker.worker",
    "builtin_plugins.clients.process.process",
    "builtin_plugins.executors.process.child",
    "builtin_plugins.servers.http.server",
    "builtin_plugins.routes.openai.routes",
)
READ_AT_IMPORT: Final = (
    *(
        "PYTHON",
        "LD_",
        "LC_",
        "LANG",
        "MALLOC_",
        "HOME",
        "TZ",
        "XDG_",
        "HF_",
        "HUGGING",
        "TRANSFORMERS_",
    ),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "CUDA_", "TRITON_"),
)
"""Prefixes of variables that are read while Python starts or modules are imported."""
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MAX_COMMAND_BYTES: Final = 4096
MAX_REQUEST_BYTES: Final = 1 << 17
"""A message of a socket is bounded; with more variables a new Python is started."""
FIRST_TEMPORARY_FD: Final = 512


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a start of Python and its imports read."""
    found = {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}
    for name in THREADS:
        found.setdefault(name, found.get(THREADS[0], ""))
    return found


def can_fork(command: Sequence[str], environment: Mapping[str, str], ours: object) -> bool:
    """Return whether a fork of a process that has imported with the variables `ours` equals a new
    Python.
    """
    return (
        command[0] == sys.executable
        and tuple(command[1:4]) in (ENGINE, CHILD)
        and not any("\0" in word for word in command)
        and len(_line(command)) < MAX_COMMAND_BYTES
        and read_at_import(environment) == ours
    )


def _line(command: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in command)


def serve(channel: socket.socket) -> None:
    """Fork on request, until the other end is closed."""
    for module in IMPORTED:
        importlib.import_module(module)
    for plugin in sys.modules["core.plugin"].make_plan().plugins:
        with contextlib.suppress(Exception):  # a fork reports it
            importlib.import_module(plugin.target)
    os.posix_spawn = _SpawnByFork(os.posix_spawn)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all its pages
    while True:
        message, files, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 64)
        if not message:
            return
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle and not os.fork():
            channel.close()
            os.close(reading)
            _become(json.loads(message), files, writing)
        if not middle:
            os._exit(0)
        os.waitpid(middle, 0)  # now its fork is a child of the tests' process
        os.close(writing)
        channel.send(os.read(reading, 64))
        for fd in (reading, *files):
            os.close(fd)


def _become(request: Mapping[str, Any], files: Sequence[int], announce: int) -> NoReturn:
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    announce, *files = (_move_up(fd) for fd in (announce, *files))
    for fd, number in zip(files, request["numbers"], strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    _take_identity(request["command"], request["environment"])
    os.write(announce, str(os.getpid()).encode())
    os.close(announce)
    _run(request["command"])


def _move_up(fd: int) -> int:
    """Return a number for the descriptor that no process has been given."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_TEMPORARY_FD)
    os.close(fd)
    return moved


class _SpawnByFork:
    """`os.posix_spawn`, by which the parent of `engine serve` starts engine processes."""

    def __init__(self, posix_spawn: Callable[..., int]) -> None:
        self._posix_spawn = posix_spawn
        self._variables = read_at_import(os.environ)

    def __call__(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Mapping[bytes, bytes],
        **options: Any,
    ) -> int:
        command = [os.fsdecode(word) for word in argv]
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        if threading.active_count() > 1 or not can_fork(command, environment, self._variables):
            return self._posix_spawn(path, argv, env, **options)
        sys.stdout.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if "setpgroup" in options:
                with contextlib.suppress(OSError):
                    os.setpgid(pid, options["setpgroup"])
            return pid
        gc.freeze()  # what the parent has open is closed below, and by no destructor
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if "setpgroup" in options:
            os.setpgid(0, options["setpgroup"])
        for _, fd, number in options["file_actions"]:
            os.dup2(fd, number, inheritable=True)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the folder's own
                if not os.get_inheritable(fd):
                    os.close(fd)
        _take_identity(command, environment)
        return _run(command)


def _take_identity(command: list[str], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    tempfile.tempdir = None
    sys.orig_argv = command
    _set_command_line(command)


def _run(command: Sequence[str]) -> NoReturn:
    """Run what the command runs, in this process."""
    arguments = command[4:]
    if tuple(command[1:4]) == CHILD:
        child = sys.modules[CHILD[-1]]
        sys.argv = [str(child.__file__), *arguments]
        child.main(*arguments)
    sys.argv = ["-c", *arguments]
    status = sys.modules["core.cli.main"].main()
    # The end of an interpreter without that of its modules, which would copy all their pages.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _set_command_line(command: Sequence[str]) -> None:
    """Set what `ps` shows: the memory of this process's own arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first = int(fields[45])  # arg_start and arg_end
    last = int(fields[46])
    ctypes.memmove(first, _line(command).ljust(last - first, b"\0"), last - first)
    Path("/proc/self/comm").write_text(Path(sys.executable).name)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
