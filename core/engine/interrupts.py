"""Ctrl-C between two steps of the engine, never in the middle of one.

Knows signals; knows no engine.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class Interrupts:
    """Holds Ctrl-C back until `check`.

    A handler of the caller's own, and other threads, are left as they are.
    """

    def __init__(self) -> None:
        self._pending = False
        main = threading.current_thread() is threading.main_thread()
        self._ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> Self:
        if self._ours:
            signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed since the last call."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal.

        The second Ctrl-C is raised at once: a step that hangs must not hold its user.
        """
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
