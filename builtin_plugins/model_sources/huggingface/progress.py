"""Progress of downloads where standard error is no terminal: a log line every few seconds.

On a terminal the hub's client draws its own bars.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from typing import Any, Final

LOG_INTERVAL_S: Final = 10.0
"""Interval between two log lines of a download, in seconds."""
MB: Final = 1_000_000

log = logging.getLogger(__name__)


def progress_class(name: str) -> Any:
    """Return the class of progress bars for a download; None for the hub's own bars.

    `HF_HUB_DISABLE_PROGRESS_BARS=1` turns the log lines off, too.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled  # lazy: slow to import

    if are_progress_bars_disabled():
        return None
    return None if sys.stderr.isatty() else _logged(ProgressLog(name))


def hidden_progress() -> Any:
    """Return a class of progress bars that shows nothing."""
    return _logged(None)


class ProgressLog:
    """Logs the bytes of one download; its bars and threads share it."""

    def __init__(self, name: str, interval_s: float = LOG_INTERVAL_S) -> None:
        self._name = name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._logged_s = self._started_s

    def report(self, num_bytes: float, total_bytes: float) -> None:
        """Log the bytes so far and their rate, unless a line was logged just now."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._logged_s < self._interval_s:
                return
            self._logged_s = now_s
        rate = num_bytes / MB / (now_s - self._started_s)
        log.info(
            "%s: %.0f of %.0f MB downloaded, %.1f MB/s",
            *(self._name, num_bytes / MB, total_bytes / MB, rate),
        )


def _logged(progress: ProgressLog | None) -> Any:
    """Return a bar class that reports bytes to the log, and draws nothing."""
    from tqdm.std import tqdm  # lazy: only downloads need it

    class LoggedBar(tqdm):  # type: ignore[misc]
        """A bar without a display."""

        monitor_interval = 0  # no thread

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "mininterval": 0.5, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            """Report the bytes so far."""
            if progress is not None and self.unit == "B" and self.n:
                progress.report(self.n, self.total or self.n)

    return LoggedBar
