"""A worker. This one lets the kernel's own work and counts its steps; compute your way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.api import (
        EngineConfig,
        KVLayout,
        ModelSource,
        Pending,
        Registry,
        StepPlan,
        Worker,
        WorkerInfo,
    )


class Acme:
    """Computes on one device."""

    def __init__(
        self, config: EngineConfig, registry: Registry, source: ModelSource, join: Any = None
    ) -> None:
        self._inner: Worker = registry.load(registry.choose("workers", "worker"))(
            config, registry, source, join
        )
        self.num_steps = 0

    @property
    def told(self) -> Callable[[str, bytes], None]:
        """What is called with what features here tell outside of steps."""
        return self._inner.told

    @told.setter
    def told(self, told: Callable[[str, bytes], None]) -> None:
        self._inner.told = told

    @property
    def reports(self) -> bool:
        """Say whether some feature's half may answer steps."""
        return self._inner.reports

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._inner.start()

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Make the cache."""
        self._inner.allocate(layout, first_layer)

    def execute(self, plan: StepPlan) -> Pending:
        """Run one step, or begin it."""
        self.num_steps += 1
        return self._inner.execute(plan)

    def call(self, name: str, data: bytes) -> bytes | None:
        """Return what a feature's half answers."""
        return self._inner.call(name, data)

    def close(self) -> None:
        """End what works beside this thread."""
        self._inner.close()
