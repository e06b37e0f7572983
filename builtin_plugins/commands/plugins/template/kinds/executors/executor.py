"""An executor. This one lets the engine's own `uni` work and counts its time; run workers your way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.api import (
        EngineConfig,
        Executor,
        KVLayout,
        ModelSource,
        StepPlan,
        StepResult,
        WorkerInfo,
    )


class Acme:
    """Runs the steps of one engine."""

    def __init__(self, config: EngineConfig, registry: Any, source: ModelSource) -> None:
        self._inner: Executor = registry.load(registry.choose("executors", "uni"))(
            config, registry, source
        )
        self.waited_s = 0.0
        """Time spent waiting for results."""

    @property
    def depth(self) -> int:
        """Plans that may be in flight at once."""
        return self._inner.depth

    @property
    def told(self) -> Callable[[str, bytes], None]:
        """What is called with what worker halves tell; set by the engine."""
        return self._inner.told

    @told.setter
    def told(self, told: Callable[[str, bytes], None]) -> None:
        self._inner.told = told

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._inner.start()

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache."""
        self._inner.allocate(layout)

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan."""
        self._inner.submit(plan)

    def collect(self) -> StepResult:
        """Return the result of the oldest plan in flight."""
        started = time.monotonic()
        try:
            return self._inner.collect()
        finally:
            self.waited_s += time.monotonic() - started

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Make a call of the worker halves on every rank."""
        return self._inner.call(name, data)

    def shutdown(self) -> None:
        """Release everything."""
        self._inner.shutdown()
