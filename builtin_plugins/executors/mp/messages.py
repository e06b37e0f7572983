"""What an executor and the processes of its ranks say to each other.

A rank takes what it is told in order.
"""

from __future__ import annotations

import msgspec

from core.api import KVLayout, StepPlan, StepResult, WorkerInfo
from core.process.messages import Beat, Connected, Failed, Fault


class Join(msgspec.Struct, frozen=True, tag=True):
    """Meet the others in this folder and load the model; the answer is `Loaded`."""

    folder: str


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Make the cache; the answer is `Allocated`."""

    layout: KVLayout
    first_layer: int
    """Index in the layout of the stage's first caching layer."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Begin one step. A rank that fails answers with `StepFailed`."""

    plan: StepPlan


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """End the oldest step. The first rank of the last stage answers with `Done`, the others with
    `Said` if they report, and
    every rank that fails with `StepFailed`.
    """


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Ask the rank's half of a feature; the answer is `Answered`."""

    name: str
    data: bytes


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is there."""

    info: WorkerInfo
    reports: bool = False
    """What the rank says of each step counts, whether or not it is the one that samples."""


class Allocated(msgspec.Struct, frozen=True, tag=True):
    """Plans can come."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """What a step produced."""

    result: StepResult


class Said(msgspec.Struct, frozen=True, tag=True):
    """What features have to say of a step on a rank whose result is not the step's."""

    step: int
    payloads: dict[str, list[bytes]]


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step raised; the rank takes the next one."""

    step: int
    message: str
    """Empty: as the last stage says."""


class Answered(msgspec.Struct, frozen=True, tag=True):
    """What a feature's half has answered."""

    data: bytes | None
    """None: it has nothing to say."""
    fault: Fault | None = None
    """What it has raised instead."""


class Told(msgspec.Struct, frozen=True, tag=True):
    """A feature's half here tells its scheduler half something."""

    name: str
    data: bytes


ToRank = Join | Allocate | Run | Fetch | Ask | Leave
FromRank = (
    Loaded | Allocated | Done | Said | StepFailed | Answered | Told | Beat | Connected | Failed
)
