"""Opens untrusted files: a FIFO or a device never blocks the reader."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularError(OSError):
    """The path is a directory, FIFO, socket or device."""


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, open for reading. Raises `OSError`; `strerror` says why.

    A plain `open` of a FIFO waits for a writer, and reading a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(None, "expected a regular file")
    return os.fdopen(descriptor, "rb")
