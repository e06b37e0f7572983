"""Logging of the command line: one quiet format on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import TextIO

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"
OURS = ("core", "builtin_plugins", "core_kernels")


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: it may be replaced after the logging is set up."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


def setup_logging(level: str, packages: Iterable[str] = ()) -> None:
    """Log to stderr: the engine and `packages` from `level` on, everything else warnings (all, if debug).

    May be called again when the plugins, and so their packages, are known.
    """
    root = logging.getLogger()
    if not any(isinstance(handler, StderrHandler) for handler in root.handlers):
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    for package in (*OURS, *packages):
        logging.getLogger(package).setLevel(level.upper())
