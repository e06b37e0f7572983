"""What holds for every test: logging is as it was before, whoever set levels or handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core.logs import OURS


@pytest.fixture(autouse=True)
def logging_is_left_alone() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", *OURS)]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
