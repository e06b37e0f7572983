"""Writes log lines to a pipe without waiting for a reader that does not read."""

from __future__ import annotations

import os
import select
import stat
from typing import Final

WAIT_MS: Final = 40
"""Wait for a full pipe's reader, in milliseconds; none once that was in vain."""


class LogPipe:
    """The pipe of a descriptor, opened a second time, so that other processes' writes still block.

    Raises `OSError` for other kinds of files, and where pipes cannot be opened again.
    """

    def __init__(self, descriptor: int) -> None:
        self._identity = identity(descriptor)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError("not a pipe")
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        self._rest = b""
        """End of a line that did not fit."""
        self._is_stuck = False

    def is_open(self, descriptor: int) -> bool:
        """Return whether this is the pipe of a descriptor; a fork may have closed descriptors."""
        try:
            return self._identity == identity(descriptor) == identity(self._descriptor)
        except OSError:
            return False

    def close(self) -> None:
        """Close the pipe, if this is still the owner of its descriptor."""
        if self.is_open(self._descriptor):
            os.close(self._descriptor)

    def write(self, line: bytes) -> bool:
        """Write a line; return False if the pipe is full: nothing of the line is written then."""
        num_rest = len(self._rest)
        data = self._rest + line
        num_written = self._write(data)
        if num_written <= num_rest < len(data):
            self._rest = self._rest[num_written:]
            return False
        self._rest = data[num_written:]
        return True

    def _write(self, data: bytes) -> int:
        num_written = 0
        while num_written < len(data):
            try:
                num_written += os.write(self._descriptor, data[num_written:])
                self._is_stuck = False
            except BlockingIOError:
                if self._is_stuck or not self._poll.poll(WAIT_MS):
                    self._is_stuck = True
                    break
        return num_written


def identity(descriptor: int) -> tuple[int, int]:
    """Return what distinguishes an open file from others."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
