"""An interpreter that has imported what takes longest, and runs each program of a page in a fork of
itself.

`python warm.py SOCKET` is the interpreter; scripts that begin with the line of a `CLIENT` are its
programs.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import site
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Final, NoReturn

CLIENT: Final = """\
#!{python} -IS
import json, os, socket, sys
if not sys.argv[1:] or sys.argv[1].startswith("-"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(server, [request.encode()], [0, 1, 2])
    sys.exit(int(server.recv(16) or 1))
"""
"""Stands for `python`: a program runs with its arguments, folder, environment and streams, and it
ends with its status.
"""
MAX_BYTES: Final = 1 << 17


def serve(listener: socket.socket) -> NoReturn:
    """Run every requested program in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        with connection:
            if not os.fork():
                listener.close()
                _answer(connection)


def _answer(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
    program = os.fork()
    if not program:
        connection.close()
        _run(*json.loads(data), streams)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    connection.send(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def _run(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]
) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).absolute().parent)
    site.addsitedir(
        sysconfig.get_path("purelib")
    )  # an earlier command may have installed something editable
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    import fastapi  # noqa: F401
    import torch  # noqa: F401
    from transformers import AutoConfig, AutoTokenizer  # noqa: F401

    gc.freeze()  # what is not looked at is not copied for each
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        serve(listener)
