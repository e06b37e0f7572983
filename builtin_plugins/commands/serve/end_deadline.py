"""When an API process that should end is killed, whatever thread, client or process hangs."""

from __future__ import annotations

import time
from math import inf
from typing import Final

FORCE_S: Final = 10.0
"""Seconds from the second signal to the kill."""
STOP_S: Final = 30.0
"""Seconds for the engine and all threads to stop once no request is open."""
EXIT_S: Final = 10.0
"""Seconds from the announced exit to the exit."""


class EndDeadline:
    """The deadline of one API process after another, which signals and its own messages set."""

    def __init__(self, shutdown_timeout_s: float | None) -> None:
        """`shutdown_timeout_s`: seconds for open requests after a signal; None: no limit."""
        self._drain_s = inf if shutdown_timeout_s is None else shutdown_timeout_s
        self._at_s = inf
        self.num_signals = 0
        self.has_drained = False
        """No request was open at its end."""
        self.status: int | None = None
        """Exit status that it announced; None while it has not."""

    @property
    def is_set(self) -> bool:
        """Whether the process should end."""
        return self._at_s < inf

    def is_over(self) -> bool:
        """Return whether the process must be killed now."""
        return time.monotonic() > self._at_s

    def on_signal(self) -> None:
        """Set it at the first signal, and bring it forward at the second."""
        self.num_signals += 1
        self._set(self._drain_s + STOP_S if self.num_signals == 1 else FORCE_S)

    def on_drained(self) -> None:
        """Bring it forward: the server has stopped."""
        self.has_drained = True
        self._set(STOP_S)

    def on_leave(self, status: int) -> None:
        """Bring it forward: only the interpreter's own end is left."""
        self.status = status
        self._set(EXIT_S)

    def _set(self, seconds: float) -> None:
        self._at_s = min(self._at_s, time.monotonic() + seconds)
