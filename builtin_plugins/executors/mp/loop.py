"""The process of one rank: a worker that takes its part of the model, and plans from the executor
that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from builtin_plugins.executors.mp.messages import (
    Allocate,
    Allocated,
    Answered,
    Ask,
    Done,
    Fetch,
    Leave,
    Loaded,
    Run,
    Said,
    StepFailed,
    Told,
    ToRank,
)
from core.api import EngineError, ModelError, Worker
from core.errors import LastStageFailed
from core.models.layers.collective import gloo, meet
from core.process.messages import BEAT_S, Beat, Fault, Start

if TYPE_CHECKING:
    from core.api import ParallelGroup, Pending, Pipeline, Platform, Registry, StepPlan
    from core.process.child import ParentChannel

log = logging.getLogger(__name__)


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Be a rank until told to leave. Raises what it cannot start for."""
    channel.expect(ToRank)
    folder = channel.receive().folder
    threading.Thread(target=_beat, args=(channel,), name="beat", daemon=True).start()
    config = start.config
    tensor = config.parallel.tensor_parallel_size
    pipeline = config.parallel.pipeline_parallel_size

    def join(platform: Platform) -> tuple[ParallelGroup, Pipeline]:
        channel.stage("meeting the other ranks")
        place = meet(folder, start.rank, tensor, pipeline, getattr(platform, "process_group", gloo))
        channel.stage("loading the model")
        return place

    channel.stage("finding the model")
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(
            f"no plugin knows the model {config.model.model!r} any more; it was there a moment ago."
        )
    worker: Worker = registry.load(registry.choose("workers"))(config, registry, source, join)
    worker.told = lambda name, data: channel.send(Told(name, data))
    channel.send(Loaded(worker.start(), worker.reports))
    Rank(worker, channel, samples=start.rank == tensor * (pipeline - 1)).serve()
    worker.close()


class Rank:
    """Does what the executor says, in order."""

    def __init__(self, worker: Worker, channel: ParentChannel, *, samples: bool) -> None:
        """`samples`: this is the rank whose results are the steps'."""
        self._worker = worker
        self._channel = channel
        self._samples = samples
        self._begun: deque[tuple[int, Pending | None]] = deque()
        """Steps that were not fetched yet; None where one has failed already."""

    def serve(self) -> None:
        """Take messages until the one to leave."""
        while not isinstance(message := self._channel.receive(), Leave):
            if isinstance(message, Run):
                self._begin(message.plan)
            elif isinstance(message, Fetch):
                self._end()
            elif isinstance(message, Ask):
                self._channel.send(self._answer(message))
            elif isinstance(message, Allocate):
                self._channel.stage("allocating the KV cache")
                self._worker.allocate(message.layout, message.first_layer)
                self._channel.stage("serving")
                self._channel.send(Allocated())

    def _begin(self, plan: StepPlan) -> None:
        pending = None
        try:
            pending = self._worker.execute(plan)
        except Exception as error:  # noqa: BLE001 - it costs the step, or the engine where others get through it
            self._failed(plan.step, error)
        self._begun.append((plan.step, pending))

    def _end(self) -> None:
        step, pending = self._begun.popleft()
        if pending is None:
            return
        try:
            result = pending.get()
        except Exception as error:  # noqa: BLE001 - likewise
            self._failed(step, error)
            return
        if self._samples:
            self._channel.send(Done(result))
        elif self._worker.reports:
            self._channel.send(Said(step, result.payloads))

    def _failed(self, step: int, error: Exception) -> None:
        text = ""
        if not isinstance(error, LastStageFailed):
            log.error("step %d has failed", step, exc_info=error)
            text = (
                str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            )
        self._channel.send(StepFailed(step, text))

    def _answer(self, message: Ask) -> Answered:
        try:
            return Answered(self._worker.call(message.name, message.data))
        except Exception as error:  # noqa: BLE001 - who asked gets it
            return Answered(None, Fault.of(error))


def _beat(channel: ParentChannel) -> None:
    while True:
        channel.send(Beat())
        time.sleep(BEAT_S)
