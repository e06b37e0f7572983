"""What holds for every test: logging is as it was before, and threads that have nothing to do sleep."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from core.logs import OURS

LOGGERS = {name: logging.getLogger(name) for name in ("", *OURS)}
LEVELS = {name: logger.level for name, logger in LOGGERS.items()}

# Read when torch is loaded, here and in child processes. Where more programs want the cores than there are, threads that
# wait for each other by spinning make an engine's step twenty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def logging_is_left_alone() -> Iterator[None]:
    handlers = {name: list(logger.handlers) for name, logger in LOGGERS.items()}
    yield
    for name, logger in LOGGERS.items():
        logger.setLevel(LEVELS[name])  # not what it was before the test: an engine for several tests may have set it
        logger.handlers[:] = handlers[name]
