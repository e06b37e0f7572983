"""What an executor and the processes of its ranks say to each other. A rank runs `core.worker.rank:run`."""

from __future__ import annotations

import msgspec

from core.kv_spec import KVLayout
from core.process.messages import Beat, Connected, Failed
from core.step import StepPlan, StepResult, WorkerInfo


class Join(msgspec.Struct, frozen=True, tag=True):
    """Meet the others in this folder and load the model; the answer is `Loaded`."""

    folder: str


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Make the cache; the answer is `Allocated`."""

    layout: KVLayout
    first_layer: int
    """Index in the layout of the stage's first caching layer."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run one step. The first rank of the last stage answers with `Done`, and every rank that fails with `StepFailed`."""

    plan: StepPlan


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is there."""

    info: WorkerInfo


class Allocated(msgspec.Struct, frozen=True, tag=True):
    """Plans can come."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """What a step produced."""

    result: StepResult


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step raised; the rank takes the next one."""

    step: int
    message: str
    """Empty: as the last stage says."""


ToRank = Join | Allocate | Run | Leave
FromRank = Loaded | Allocated | Done | StepFailed | Beat | Connected | Failed
