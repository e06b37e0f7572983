"""Logging of every process: one quiet format on stderr, for people or for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TextIO

OURS = ("core", "builtin_plugins", "core_kernels")
PAUSE_S: Final = 60.0
"""Between two lines about what keeps failing."""


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: it may be replaced after the logging is set
    up.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process or "main"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; its time is UTC in the form of RFC 3339."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        if request_id := getattr(
            record, "request_id", ""
        ):  # given as `extra` by who logs about one request
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def setup_logging(
    level: str, packages: Iterable[str] = (), *, log_format: str = "text", process: str = ""
) -> None:
    """Log to stderr: the engine and `packages` from `level` on, everything else warnings (all, if
    debug).

    `process` names a child in its lines. May be called again when plugins, and so their packages,
    or the format are known.
    """
    root = logging.getLogger()
    handler = next(
        (handler for handler in root.handlers if isinstance(handler, StderrHandler)), None
    )
    if handler is None:
        handler = StderrHandler()
        root.addHandler(handler)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)  # they are lines, too
    else:
        where = f" [{process}]" if process else ""
        handler.setFormatter(
            logging.Formatter(f"%(levelname)s %(asctime)s{where} %(name)s: %(message)s", "%H:%M:%S")
        )
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    for package in (*OURS, *packages):
        logging.getLogger(package).setLevel(level.upper())


class Seldom:
    """Logs faults that may come with every request: of each subject the first, then one a minute,
    with their number.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        self.counted: dict[str, tuple[int, str]] = {}
        """Of each subject how many faults there were, logged or not, and the last one's words."""

    def count(self, subject: str, message: str) -> None:
        """Count a fault, which may be logged elsewhere."""
        self.counted[subject] = self.counted.get(subject, (0, ""))[0] + 1, message

    def error(self, subject: str, message: str, error: BaseException) -> None:
        """Log the message with the error's traceback, or count it among those that are held back."""
        now = self._clock()
        if now < self._next.get(subject, now):
            self._held_back[subject] = self._held_back.get(subject, 0) + 1
            return
        self._next[subject] = now + PAUSE_S
        more = self._held_back.pop(subject, 0)
        since = f" ({more} more since the last line about it)" if more else ""
        self._log.error("%s%s", message, since, exc_info=error)
