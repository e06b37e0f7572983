"""A plugin for tests: the executor `threads`, with ranks as threads of this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    """Runs every plan on all ranks at once; the first rank of the last stage answers."""

    depth = 1

    def __init__(self, config: EngineConfig, registry: Any, source: ModelSource) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._tensor = config.parallel.tensor_parallel_size
        self._pipeline = config.parallel.pipeline_parallel_size
        self._workers = [
            Worker(config, registry, source, self._join(rank))
            for rank in range(self._tensor * self._pipeline)
        ]
        self._pool = ThreadPoolExecutor(len(self._workers))
        self._plan: StepPlan

    def _join(self, rank: int) -> Callable[[Platform], tuple[ParallelGroup, Pipeline]]:
        return lambda platform: meet(self._folder.name, rank, self._tensor, self._pipeline)

    def _all(self, call: Callable[[Worker], Any]) -> list[Any]:
        return [
            done.result() for done in [self._pool.submit(call, worker) for worker in self._workers]
        ]

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
        """Store the plan until its result is collected."""
        self._plan = plan

    def collect(self) -> StepResult:
        """Run the plan everywhere."""
        results: list[StepResult] = self._all(lambda worker: worker.execute(self._plan).get())
        last = results[-self._tensor :]
        assert all(result.tokens == last[0].tokens for result in last), (
            "ranks of the last stage disagree"
        )
        return last[0]

    def shutdown(self) -> None:
        """End the threads."""
        self._pool.shutdown()
        self._folder.cleanup()
