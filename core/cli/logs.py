"""Logging of the command line: one quiet format on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"
OURS = ("core", "builtin_plugins", "core_kernels")


def setup_logging(level: str, packages: Iterable[str] = ()) -> None:
    """Log to stderr: the engine and `packages` from `level` on, everything else warnings (all, if debug).

    May be called again when the plugins, and so their packages, are known.
    """
    root = logging.getLogger()
    if not any(getattr(handler, "is_engine", False) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
        handler.is_engine = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    for package in (*OURS, *packages):
        logging.getLogger(package).setLevel(level.upper())
