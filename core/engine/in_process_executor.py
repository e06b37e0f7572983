"""The executor `uni`: one worker in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.contracts.runners import Pending
from core.contracts.workers import Worker
from core.model_spec.kv import KVLayout
from core.plugin import Registry
from core.step import StepPlan, StepResult, WorkerInfo


class UniExecutor:
    """Runs each plan when its result is collected (depth 1), or when it is
    submitted (depth 2).
    """

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        self.on_message: Callable[[str, bytes], None] = lambda name, data: None
        """Receives messages of worker halves between steps, from any thread."""
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self.worker: Worker | None = registry.load(registry.choose("workers"))(
            config, registry, source
        )
        self.worker.on_message = lambda name, data: self.on_message(name, data)
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
            except Exception as error:  # noqa: BLE001 - raised by `collect`, in plan order
                self._queue[-1] = error

    def collect(self) -> StepResult:
        """Return the result of the oldest plan; raises the step's exception."""
        oldest = self._queue.popleft()
        if isinstance(oldest, Exception):
            raise oldest
        if isinstance(oldest, StepPlan):
            oldest = self._alive().execute(oldest)
        return oldest.get()

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Return the answer of the called worker half, if there is one."""
        answer = self._alive().call(name, data)
        return [] if answer is None else [answer]

    def _alive(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("the executor was shut down")
        return self.worker

    def shutdown(self) -> None:
        """Release the model."""
        worker = self.worker
        self.worker = None
        self._queue.clear()
        if worker is not None:
            worker.close()
