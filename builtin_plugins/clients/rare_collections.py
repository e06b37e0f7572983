"""The garbage collections of a start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

START_THRESHOLD: Final = 100_000
"""Allocations between two collections; a start's imports leave no garbage."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage seldom in the body of the `with` statement, which starts an engine."""
    before = gc.get_threshold()
    gc.set_threshold(START_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
