"""Entry point of a model's process: becomes `engine serve`, which ends with the process above it.

`python -P -m builtin_plugins.commands.serve.models.child CONFIG PARENT OUTPUT`
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""See prctl(2): the signal that a process gets when its parent has died; survives execve."""


def main(config: str, parent_pid: str, output: str) -> None:
    """Write to the pipe `output` and serve; `parent_pid` is the process that must stay alive."""
    for number in (1, 2):
        os.dup2(int(output), number)
    os.close(int(output))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent_pid):  # it died before the call
        sys.exit(1)
    command = [sys.executable, "-P", "-m", "core.cli.main", "--config", config, "serve"]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main(*sys.argv[1:])
