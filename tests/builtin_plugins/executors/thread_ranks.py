"""A plugin for tests: the executor `threads`, with ranks as threads of this process."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from builtin_plugins.executors.api import layer_partition
from core.api import EngineConfig, Entry, hookimpl
from core.api.execution import Platform, StepPlan, StepResult, WorkerInfo
from core.api.models import ModelSource
from core.model_spec.kv import KVLayout
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.parallel import meet
from core.worker import Worker


@hookimpl
def engine_executors() -> list[Entry]:
    return [Entry("threads", ThreadExecutor, "one thread per rank")]


class ThreadExecutor:
    """Runs every plan on all ranks, each in a thread, as processes would; checks their results."""

    def __init__(self, config: EngineConfig, registry: Any, source: ModelSource) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._tensor = config.parallel.tensor_parallel_size
        self._pipeline = config.parallel.pipeline_parallel_size
        self._workers = [
            Worker(config, registry, source, self._join(rank))
            for rank in range(self._tensor * self._pipeline)
        ]
        self.depth = self._pipeline + bool(config.scheduler.async_scheduling)
        self._partition = layer_partition(config)
        self._threads = [ThreadPoolExecutor(1) for _ in self._workers]
        self._in_flight: deque[list[Future[Any]]] = deque()

    def _join(self, rank: int) -> Callable[[Platform], tuple[ParallelGroup, Pipeline]]:
        def join(platform: Platform) -> tuple[ParallelGroup, Pipeline]:
            sizes = (rank, self._tensor, self._pipeline)
            return meet(self._folder.name, *sizes, partition=self._partition)

        return join

    def _launch(self, call: Callable[[Worker], Any]) -> list[Future[Any]]:
        pairs = zip(self._threads, self._workers, strict=True)
        return [thread.submit(call, worker) for thread, worker in pairs]

    def _all(self, call: Callable[[Worker], Any]) -> list[Any]:
        return [done.result() for done in self._launch(call)]

    def start(self) -> WorkerInfo:
        """Load every rank."""
        self._infos = self._all(Worker.start)
        return WorkerInfo.combine(self._infos, self._tensor)

    def allocate(self, layout: KVLayout) -> None:
        """Allocate on every rank."""
        first_layer = 0
        for stage in range(self._pipeline):
            for worker in self._workers[stage * self._tensor :][: self._tensor]:
                worker.allocate(layout, first_layer)
            first_layer += len(self._infos[stage * self._tensor].layers)

    def submit(self, plan: StepPlan) -> None:
        """Launch the plan everywhere."""
        self._in_flight.append(self._launch(lambda worker: worker.execute(plan)))

    def collect(self) -> StepResult:
        """Return the oldest result; raises the error of the first rank that has one."""
        steps = [launched.result() for launched in self._in_flight.popleft()]
        pairs = zip(self._threads, steps, strict=True)
        answers = [thread.submit(step.get) for thread, step in pairs]
        results: list[StepResult] = [answer.result() for answer in answers]
        last = results[-self._tensor :]
        assert all(result.tokens == last[0].tokens for result in last), (
            "ranks of the last stage disagree"
        )
        return last[0]

    def shutdown(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()
        for worker in self._workers:
            worker.close()
        self._folder.cleanup()
