"""An executor: runs the workers of an engine.

This one delegates to the builtin `uni` executor and measures the time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.api import EngineConfig, Registry
    from core.api.execution import Executor, StepPlan, StepResult, WorkerInfo
    from core.api.models import ModelSource
    from core.model_spec.kv import KVLayout


class Acme:
    """Executes the steps of one engine."""

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        self._inner: Executor = registry.load(registry.choose("executors", "uni"))(
            config, registry, source
        )
        self.waited_s = 0.0
        """Time spent waiting for results in seconds."""

    @property
    def depth(self) -> int:
        """Maximum number of plans in flight."""
        return self._inner.depth

    @property
    def on_message(self) -> Callable[[str, bytes], None]:
        """Callback for messages of runner extensions; set by the engine."""
        return self._inner.on_message

    @on_message.setter
    def on_message(self, callback: Callable[[str, bytes], None]) -> None:
        self._inner.on_message = callback

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._inner.start()

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache."""
        self._inner.allocate(layout)

    def submit(self, plan: StepPlan) -> None:
        """Submit one plan."""
        self._inner.submit(plan)

    def collect(self) -> StepResult:
        """Return the result of the oldest plan in flight."""
        started = time.monotonic()
        try:
            return self._inner.collect()
        finally:
            self.waited_s += time.monotonic() - started

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Call the runner extensions on every rank."""
        return self._inner.call(name, data)

    def shutdown(self) -> None:
        """Release all resources."""
        self._inner.shutdown()
