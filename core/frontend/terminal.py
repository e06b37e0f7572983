"""The terminal during an offline call: its progress bar, and Ctrl-C between
two steps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, Self

Progress = bool | Callable[..., Any]
"""Whether to show a tqdm bar, or a factory of the caller's own bar."""


def progress_bar(use_tqdm: Progress, total: int) -> Any:
    """Return a tqdm bar, the bar of the caller's factory, or a silent one."""
    if not use_tqdm or total == 0:
        return SimpleNamespace(update=lambda count: None, close=lambda: None)
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts", unit="req")
    from tqdm import tqdm  # lazy: only interactive use needs it

    return tqdm(total=total, desc="Processed prompts", unit="req", dynamic_ncols=True, disable=None)


class Interrupts:
    """Defers Ctrl-C until `check`; leaves a handler of the caller and other threads alone."""

    def __init__(self) -> None:
        self._pending = False
        is_main = threading.current_thread() is threading.main_thread()
        self._installs = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> Self:
        if self._installs:
            signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._installs:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed since the last call."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal; a second Ctrl-C is raised at once, in case a step hangs."""
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
