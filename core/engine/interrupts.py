"""Ctrl-C between two steps of the engine, never in the middle of one. Knows signals; knows no engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Remembers a Ctrl-C until it may be raised."""

    def __init__(self) -> None:
        self._pending = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed since the last call."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Signal handler. The second Ctrl-C is raised at once: a step that hangs must not hold its user."""
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True


@contextmanager
def held_back() -> Iterator[Interrupts]:
    """Hold Ctrl-C back until `check`. A handler of the caller's own, and other threads, are left as they are."""
    interrupts = Interrupts()
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.remember)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.check()
