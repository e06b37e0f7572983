"""The process of one rank: a worker that takes its part of the model, and plans from the executor that started it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from core.errors import EngineError, ModelError
from core.nn.collective import gloo, meet
from core.process.messages import BEAT_S, Beat, Start
from core.process.ranks import Allocate, Allocated, Done, Loaded, Run, StepFailed, ToRank
from core.worker.worker import LastStageFailed, Worker

if TYPE_CHECKING:
    from core.contracts import Platform
    from core.nn.parallel import ParallelGroup, Pipeline
    from core.plugin import Registry
    from core.process.child import ParentChannel
    from core.step import StepPlan

log = logging.getLogger(__name__)


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Be a rank until told to leave. Raises what it cannot start for."""
    channel.expect(ToRank)
    folder = channel.receive().folder
    threading.Thread(target=_beat, args=(channel,), name="beat", daemon=True).start()
    config = start.config
    tensor, pipeline = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size

    def join(platform: Platform) -> tuple[ParallelGroup, Pipeline]:
        channel.stage("meeting the other ranks")
        place = meet(folder, start.rank, tensor, pipeline, getattr(platform, "process_group", gloo))
        channel.stage("loading the model")
        return place

    channel.stage("finding the model")
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(f"no plugin knows the model {config.model.model!r} any more; it was there a moment ago.")
    worker = Worker(config, registry, source, join)
    channel.send(Loaded(worker.start()))
    answers = start.rank == tensor * (pipeline - 1)
    while isinstance(message := channel.receive(), Allocate | Run):
        if isinstance(message, Run):
            _step(worker, message.plan, channel, answers)
        else:
            channel.stage("allocating the KV cache")
            worker.allocate(message.layout, message.first_layer)
            channel.stage("serving")
            channel.send(Allocated())


def _step(worker: Worker, plan: StepPlan, channel: ParentChannel, answers: bool) -> None:
    try:
        pending = worker.execute(plan)
        if answers:
            channel.send(Done(pending.get()))
    except LastStageFailed:
        channel.send(StepFailed(plan.step, ""))
    except Exception as error:
        log.exception("step %d has failed", plan.step)
        text = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        channel.send(StepFailed(plan.step, text))


def _beat(channel: ParentChannel) -> None:
    while True:
        channel.send(Beat())
        time.sleep(BEAT_S)
