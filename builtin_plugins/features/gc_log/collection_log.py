"""Log lines of garbage collections: pauses of a process that no request explains."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


class CollectionLog:
    """Admission and scheduler half: logs from `attach` to `close`."""

    name = "gc_log"

    def __init__(self) -> None:
        self._started_s = 0.0

    def attach(self, context: Any) -> None:
        """Begin to log; does nothing the second time."""
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Log no more. May be called twice."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._started_s = time.perf_counter()
            return
        log.info(
            "garbage collection: generation %d, %.2f ms, %d objects freed, %d uncollectable",
            info["generation"],
            1000 * (time.perf_counter() - self._started_s),
            info["collected"],
            info["uncollectable"],
        )
