"""The `uni` executor: one worker in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from core.config import EngineConfig
from core.contracts import ModelSource, Pending, Worker
from core.model_spec.kv import KVLayout
from core.plugin import Registry
from core.step import StepPlan, StepResult, WorkerInfo


class UniExecutor:
    """Depth 1 runs each plan when its result is asked for; depth 2 launches plans as they come."""

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        self.told: Callable[[str, bytes], None] = lambda name, data: None
        """Called, from any thread, with what a worker half tells its scheduler half outside of
        steps.
        """
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self.worker: Worker | None = registry.load(registry.choose("workers"))(
            config, registry, source
        )
        self.worker.told = lambda name, data: self.told(name, data)
        self._queue: deque[StepPlan | Pending | Exception] = deque()

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._alive().start()

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache."""
        self._alive().allocate(layout)

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan."""
        self._queue.append(plan)
        if self.depth > 1:
            try:
                self._queue[-1] = self._alive().execute(plan)
            except Exception as error:  # noqa: BLE001 - raised by `collect`, in the order of the plans
                self._queue[-1] = error

    def collect(self) -> StepResult:
        """Return the result of the oldest plan; raises what the step raised."""
        oldest = self._queue.popleft()
        if isinstance(oldest, Exception):
            raise oldest
        return (self._alive().execute(oldest) if isinstance(oldest, StepPlan) else oldest).get()

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Return the answer of the worker half that the call names, if it has one."""
        answer = self._alive().call(name, data)
        return [] if answer is None else [answer]

    def _alive(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("the executor was shut down")
        return self.worker

    def shutdown(self) -> None:
        """Let the model go."""
        worker = self.worker
        self.worker = None
        self._queue.clear()
        if worker is not None:
            worker.close()
