"""A worker: runs the model on one rank.

This one delegates to the builtin worker and counts its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.execution import Pending, StepPlan, Worker, WorkerInfo
    from core.api.models import ModelSource
    from core.model_spec.kv import KVLayout


class Acme:
    """Runs steps on one device."""

    def __init__(
        self, config: EngineConfig, registry: Registry, source: ModelSource, join: Any = None
    ) -> None:
        self._inner: Worker = registry.load(registry.choose("workers", "worker"))(
            config, registry, source, join
        )
        self.num_steps = 0

    @property
    def on_message(self) -> Callable[[str, bytes], None]:
        """Callback for messages of runner extensions outside steps."""
        return self._inner.on_message

    @on_message.setter
    def on_message(self, callback: Callable[[str, bytes], None]) -> None:
        self._inner.on_message = callback

    @property
    def reports(self) -> bool:
        """Whether a runner extension may add to step results."""
        return self._inner.reports

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._inner.start()

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Allocate the cache."""
        self._inner.allocate(layout, first_layer)

    def execute(self, plan: StepPlan) -> Pending:
        """Run or launch one step."""
        self.num_steps += 1
        return self._inner.execute(plan)

    def call(self, name: str, data: bytes) -> bytes | None:
        """Call the runner extensions."""
        return self._inner.call(name, data)

    def close(self) -> None:
        """Stop background work."""
        self._inner.close()
