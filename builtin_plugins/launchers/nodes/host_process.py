"""A process of this host that reaches its parent over TCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from builtin_plugins.executors.api import Credentials, Exit

MODULE: Final = "builtin_plugins.executors.process.remote_child"


class HostProcess:
    """Starts the process; watches and ends it, as a `RemoteProcess`."""

    def __init__(self, credentials: Credentials, environment: Mapping[str, str]) -> None:
        """Raises `OSError` if it cannot be started."""
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            env={**os.environ, **environment},
            process_group=0,  # signals of a terminal are for its parent
        )
        stdin = self._popen.stdin
        if stdin is not None:  # the credentials are secret, so they are on no command line
            with suppress(BrokenPipeError), stdin:
                stdin.write(msgspec.json.encode(credentials) + b"\n")

    def exit(self) -> Exit | None:
        """Return how it has ended; None while it runs."""
        status = self._popen.poll()
        if status is None:
            return None
        if status >= 0:
            return Exit(f"it exited with status {status}")
        name = signal.Signals(-status).name
        return Exit(f"it was killed by {name}", was_killed=status == -signal.SIGKILL)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self._popen.wait()
