"""Logging of every process: one format on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TextIO

from core.log_pipe import LogPipe

OURS = ("core", "builtin_plugins", "core_kernels")
PAUSE_S: Final = 60.0
"""Seconds between two log lines about the same subject."""


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which may be replaced after the logging is set up.

    Lines that a pipe has no room for are dropped and counted: nothing waits for its reader.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._pipe: LogPipe | None = None
        self._num_dropped = 0

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current standard error."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        pipe = self._current_pipe()
        if pipe is None:
            super().emit(record)
            return
        try:
            if self._num_dropped and pipe.write(self._line(self._report())):
                self._num_dropped = 0
            if self._num_dropped or not pipe.write(self._line(record)):
                self._num_dropped += 1
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def _current_pipe(self) -> LogPipe | None:
        try:
            descriptor = self.stream.fileno()
            if self._pipe is None or not self._pipe.is_open(descriptor):
                if self._pipe is not None:
                    self._pipe.close()
                self._pipe = None
                self._pipe = LogPipe(descriptor)
        except (AttributeError, OSError, ValueError):  # closed, no file, or no pipe
            return None
        return self._pipe

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}{self.terminator}".encode(errors="backslashreplace")

    def _report(self) -> logging.LogRecord:
        message = "standard error was not read: %d log lines are lost"
        arguments = (self._num_dropped,)
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, arguments, None)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object per line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process or "main"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; its time is UTC as in RFC 3339."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):  # from `extra` of the log call
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def setup_logging(
    level: str, packages: Iterable[str] = (), *, log_format: str = "text", process: str = ""
) -> None:
    """Log to stderr: the engine and `packages` from `level` on, other packages from warnings on.

    Level debug logs everything. `process` is the name of a child process in its lines. May be
    called again once the plugins' packages or the format are known.
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
        logging.captureWarnings(True)  # warnings become JSON lines, too
    else:
        where = f" [{process}]" if process else ""
        handler.setFormatter(
            logging.Formatter(f"%(levelname)s %(asctime)s{where} %(name)s: %(message)s", "%H:%M:%S")
        )
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    for package in (*OURS, *packages):
        logging.getLogger(package).setLevel(level.upper())


class RateLimitedLogger:
    """Logs faults that may come with every request: the first of a subject, then one a minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}
        self.counted: dict[str, tuple[int, str]] = {}
        """Number of faults per subject, logged or not, and the last one's message."""

    def count(self, subject: str, message: str) -> None:
        """Count a fault without logging it."""
        self.counted[subject] = self.counted.get(subject, (0, ""))[0] + 1, message

    def error(self, subject: str, message: str, error: BaseException) -> None:
        """Log the message with the error's traceback, or count it as suppressed."""
        now = self._clock()
        if now < self._next.get(subject, now):
            self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return
        self._next[subject] = now + PAUSE_S
        more = self._suppressed.pop(subject, 0)
        since = f" ({more} more since the last line about it)" if more else ""
        self._log.error("%s%s", message, since, exc_info=error)
