"""Cuts the connections of transactions that take too long.

The server's own timeouts do not help against a server that is stopped or unreachable.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

TICK_S: Final = 0.5
"""Interval of checks."""


class Deadlines:
    """The sockets of running transactions, each with the time of its end."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._ends_s: dict[int, float] = {}
        self._is_closed = threading.Event()
        threading.Thread(target=self._watch, name="postgres-deadlines", daemon=True).start()

    @contextlib.contextmanager
    def limit(self, descriptor: int) -> Iterator[None]:
        """Shut the socket down if the block takes too long: what reads from it fails."""
        with self._lock:
            self._ends_s[descriptor] = time.monotonic() + self._limit_s
        try:
            yield
        finally:
            with self._lock:
                self._ends_s.pop(descriptor, None)

    def close(self) -> None:
        """End the checks."""
        self._is_closed.set()

    def _watch(self) -> None:
        while not self._is_closed.wait(TICK_S):
            with self._lock:
                now_s = time.monotonic()
                late = [each for each, end_s in self._ends_s.items() if end_s < now_s]
                for descriptor in late:
                    del self._ends_s[descriptor]
                    _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
