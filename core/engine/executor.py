"""The `uni` executor: one worker in this process, optionally in a thread so that scheduling overlaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from core.config import EngineConfig
from core.contracts import ModelSource
from core.kv_spec import KVLayout
from core.plugin import Registry
from core.step import StepPlan, StepResult, WorkerInfo
from core.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


class UniExecutor:
    """Depth 1 runs each plan when its result is asked for; depth 2 runs plans in a thread of their own."""

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self._worker: Worker | None = Worker(config, registry, source)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker") if self.depth > 1 else None
        self._queue: deque[StepPlan | Future[StepResult]] = deque()

    def start(self) -> WorkerInfo:
        """Build the model."""
        return self._call(self._alive().start)

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache."""
        self._call(self._alive().allocate, layout)

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan."""
        self._queue.append(plan if self._thread is None else self._thread.submit(self._run, plan))

    def collect(self) -> StepResult:
        """Return the result of the oldest plan; raises what the step raised."""
        oldest = self._queue.popleft()
        return self._run(oldest) if isinstance(oldest, StepPlan) else oldest.result()

    def _call(self, method: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a method in the thread that computes, so that OpenMP keeps one set of threads, not two."""
        if self._thread is None:
            return method(*arguments, **keywords)
        return self._thread.submit(method, *arguments, **keywords).result()

    def _run(self, plan: StepPlan) -> StepResult:
        return self._alive().execute(plan).get()

    def _alive(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker

    def shutdown(self) -> None:
        """Let the model go."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._queue.clear()
        self._worker = None
