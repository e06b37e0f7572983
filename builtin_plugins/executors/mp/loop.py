"""The process of one rank: a worker with its shard of the model, driven by the executor."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from builtin_plugins.executors.api import HEARTBEAT_S, Heartbeat, Start, own_address
from builtin_plugins.executors.mp.messages import (
    Allocate,
    Allocated,
    FeatureAnswer,
    FeatureCall,
    FeatureMessage,
    FetchResult,
    Loaded,
    RunStep,
    Shutdown,
    StepDone,
    StepFailed,
    StepPayloads,
    ToRank,
)
from builtin_plugins.executors.pipeline.partition import layer_partition
from builtin_plugins.executors.process.messages import RemoteError
from core.api import EngineError, ModelError
from core.api.execution import LastStageFailed, Worker
from core.models.layers.parallel import LOOPBACK, gloo, meet

if TYPE_CHECKING:
    from builtin_plugins.executors.api import ParentChannel
    from core.api import Registry
    from core.api.execution import Pending, Platform, StepPlan
    from core.model_spec.parallel import ParallelGroup, Pipeline

log = logging.getLogger(__name__)


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Run a rank until `Shutdown`. Raises the error that prevents its start."""
    channel.expect(ToRank)
    place = channel.receive().place
    threading.Thread(target=_beat, args=(channel,), name="heartbeat", daemon=True).start()
    config = start.config
    tensor = config.parallel.tensor_parallel_size
    pipeline = config.parallel.pipeline_parallel_size

    def join(platform: Platform) -> tuple[ParallelGroup, Pipeline]:
        channel.stage("meeting the other ranks")
        own = own_address(channel.host, f"host of {start.process}") if channel.host else LOOPBACK
        backend = getattr(platform, "process_group", partial(gloo, host=own))
        partition = layer_partition(config)
        ranks = start.rank, tensor, pipeline
        groups = meet(place, *ranks, backend, partition, platform.device)
        channel.stage("loading the model")
        return groups

    channel.stage("finding the model")
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(
            f"no plugin knows the model {config.model.model!r} any more; it was there a moment ago."
        )
    worker: Worker = registry.load(registry.choose("workers"))(config, registry, source, join)
    worker.on_message = lambda name, data: channel.send(FeatureMessage(name, data))
    try:
        channel.send(Loaded(worker.start(), worker.reports))
        Rank(worker, channel, samples=start.rank == tensor * (pipeline - 1)).serve()
    except BaseException:
        # Threads of features must not outlive what they use; their errors must not hide this one.
        with suppress(Exception):
            worker.close()
        raise
    worker.close()


class Rank:
    """Executes the executor's messages in order."""

    def __init__(self, worker: Worker, channel: ParentChannel, *, samples: bool) -> None:
        """Create the rank; `samples` is true for the rank that returns the step results."""
        self._worker = worker
        self._channel = channel
        self._samples = samples
        self._launched: deque[tuple[int, Pending | None]] = deque()
        """Steps not fetched yet; None for a step that has failed."""

    def serve(self) -> None:
        """Handle messages until `Shutdown`."""
        while not isinstance(message := self._channel.receive(), Shutdown):
            if isinstance(message, RunStep):
                self._launch(message.plan)
            elif isinstance(message, FetchResult):
                self._fetch()
            elif isinstance(message, FeatureCall):
                self._channel.send(self._call(message))
            elif isinstance(message, Allocate):
                self._channel.stage("allocating the KV cache")
                self._worker.allocate(message.layout, message.first_layer)
                self._channel.stage("serving")
                self._channel.send(Allocated())

    def _launch(self, plan: StepPlan) -> None:
        pending = None
        try:
            pending = self._worker.execute(plan)
        except Exception as error:  # noqa: BLE001 - fails the step, or the engine
            self._send_failure(plan.step, error)
        self._launched.append((plan.step, pending))

    def _fetch(self) -> None:
        step, pending = self._launched.popleft()
        if pending is None:
            return
        try:
            result = pending.get()
        except Exception as error:  # noqa: BLE001 - as in `_launch`
            self._send_failure(step, error)
            return
        if self._samples:
            self._channel.send(StepDone(result))
        elif self._worker.reports:
            self._channel.send(StepPayloads(step, result.payloads))

    def _send_failure(self, step: int, error: Exception) -> None:
        text = ""
        if not isinstance(error, LastStageFailed):
            log.error("step %d has failed", step, exc_info=error)
            is_engine_error = isinstance(error, EngineError)
            text = str(error) if is_engine_error else f"{type(error).__name__}: {error}"
        self._channel.send(StepFailed(step, text))

    def _call(self, message: FeatureCall) -> FeatureAnswer:
        try:
            return FeatureAnswer(self._worker.call(message.name, message.data))
        except Exception as error:  # noqa: BLE001 - returned to the caller
            return FeatureAnswer(None, RemoteError.from_exception(error))


def _beat(channel: ParentChannel) -> None:
    while True:
        channel.send(Heartbeat())
        time.sleep(HEARTBEAT_S)
