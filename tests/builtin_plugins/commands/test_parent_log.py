"""The parent process writes log lines to a terminal that may take nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.timeouts import TIMEOUT_S

LINES = """
import os, signal, sys
from builtin_plugins.commands.serve import parent_log

log = parent_log.ParentLog()
log.write(lambda: print("first", file=sys.stderr))
print(log.pid)
parent_log.LOG_S = 0.1
log.write(lambda: print("x" * 1_000_000, file=sys.stderr))
stuck = log.pid
log.write(lambda: print("dropped", file=sys.stderr))
print(stuck > 0, log.pid == stuck)
os.kill(stuck, signal.SIGKILL)
"""


def run_lines(descriptor: int) -> str:
    command = [sys.executable, "-c", LINES]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=descriptor, text=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout


def test_terminal_that_takes_nothing_delays_the_parent_once() -> None:
    reader, writer = pty.openpty()
    assert run_lines(writer) == "0\nTrue True\n"
    assert os.read(reader, 100).startswith(b"first")
    os.close(reader)
    os.close(writer)
