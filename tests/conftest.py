"""What holds for every test: logging is as it was before, whoever set levels or handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core.logs import OURS

LOGGERS = {name: logging.getLogger(name) for name in ("", *OURS)}
LEVELS = {name: logger.level for name, logger in LOGGERS.items()}


@pytest.fixture(autouse=True)
def logging_is_left_alone() -> Iterator[None]:
    handlers = {name: list(logger.handlers) for name, logger in LOGGERS.items()}
    yield
    for name, logger in LOGGERS.items():
        logger.setLevel(LEVELS[name])  # not what it was before the test: an engine for several tests may have set it
        logger.handlers[:] = handlers[name]
