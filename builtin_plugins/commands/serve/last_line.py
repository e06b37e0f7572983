"""The last log line of the parent process, which a disk or terminal may never take."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

LOG_S: Final = 2.0
"""Longest wait for standard error at the end, in seconds."""


def log_last_line(log_line: Callable[[], None], status: int) -> None:
    """Log a line; exit with the status if standard error does not take it in time."""
    thread = threading.Thread(target=log_line, name="last-line", daemon=True)
    thread.start()
    thread.join(LOG_S)
    if thread.is_alive():
        os._exit(status)  # the interpreter's own end would wait for the stream
