"""The messages between the `mp` executor and its rank processes; ranks handle them in order."""

from __future__ import annotations

import msgspec

from builtin_plugins.executors.api import Connected, Failed, Heartbeat
from builtin_plugins.executors.process.messages import RemoteError
from core.api.execution import StepPlan, StepResult, WorkerInfo
from core.model_spec.kv import KVLayout


class Join(msgspec.Struct, frozen=True, tag=True):
    """Join the process group and load the model; answered by `Loaded`."""

    place: str
    """Where the ranks meet: a private folder, or `tcp://HOST:PORT` of a store."""


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Allocate the KV cache; answered by `Allocated`."""

    layout: KVLayout
    first_layer: int
    """Layout index of the stage's first caching layer."""


class RunStep(msgspec.Struct, frozen=True, tag=True):
    """Launch one step; a rank that fails answers with `StepFailed`."""

    plan: StepPlan


class FetchResult(msgspec.Struct, frozen=True, tag=True):
    """Finish the oldest step.

    The first rank of the last stage answers with `StepDone`, the others with `StepPayloads` if they
    report, and every rank that fails with `StepFailed`.
    """


class FeatureCall(msgspec.Struct, frozen=True, tag=True):
    """Call the rank's half of a feature; answered by `FeatureAnswer`."""

    name: str
    data: bytes


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    info: WorkerInfo
    reports: bool = False
    """Whether the payloads of every rank are needed, not only those of the sampling rank."""


class Allocated(msgspec.Struct, frozen=True, tag=True):
    """The rank accepts plans."""


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """The result of a step."""

    result: StepResult


class StepPayloads(msgspec.Struct, frozen=True, tag=True):
    """Feature payloads of one step, from a rank without a result."""

    step: int
    payloads: dict[str, list[bytes]]


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step raised; the rank continues with the next one."""

    step: int
    message: str
    """Error message; empty if the last stage has it."""


class FeatureAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer of a feature's half."""

    data: bytes | None
    """Answer; None if the feature has none."""
    fault: RemoteError | None = None
    """Exception raised instead."""


class FeatureMessage(msgspec.Struct, frozen=True, tag=True):
    """A payload of a feature's half for its scheduler half, outside of steps."""

    name: str
    data: bytes


ToRank = Join | Allocate | RunStep | FetchResult | FeatureCall | Shutdown
FromRank = (
    Loaded
    | Allocated
    | StepDone
    | StepPayloads
    | StepFailed
    | FeatureAnswer
    | FeatureMessage
    | Heartbeat
    | Connected
    | Failed
)
