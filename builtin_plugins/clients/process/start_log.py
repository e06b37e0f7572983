"""Log lines of a slow start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from builtin_plugins.launchers.api import ChildProcess

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""Seconds between two lines."""


class StartLog:
    """Logs the stage of a start every few seconds, so that a slow one is never silent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._next_s = self._started_s + INTERVAL_S

    def note(self, child: ChildProcess) -> None:
        """Log the stage if a line is due."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            log.info("%s: %s, %.0f s so far", child.name, child.stage, now_s - self._started_s)
