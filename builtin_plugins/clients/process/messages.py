"""Messages between the engine process and the API process."""

from __future__ import annotations

import msgspec

from builtin_plugins.executors.api import Connected, Failed, Heartbeat, RemoteError
from core.api import EngineConfig
from core.api.execution import CallAnswer, EngineRequest, StepOutputs, WorkerInfo
from core.api.telemetry import StepStats


class Add(msgspec.Struct, frozen=True, tag=True):
    """Queue the sequences of one request."""

    call: int
    requests: list[EngineRequest]
    resumed: bool = False
    """Whether an earlier engine process had accepted them."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End requests early."""

    call: int
    request_ids: list[str]


class Call(msgspec.Struct, frozen=True, tag=True):
    """Call a feature."""

    call: int
    name: str
    data: bytes
    only_reads: bool = False
    """Whether it leaves the weights as they are."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is ready."""

    config: EngineConfig
    """Configuration with all automatic values resolved."""
    info: WorkerInfo
    unclaimed: list[str] = []
    """Resumable requests that no API process has added again yet."""
    weights: str = ""
    """Identity of the weights."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Result of a call."""

    call: int
    fault: RemoteError | None = None
    found: list[CallAnswer] = []
    """Results of `Call`, one per engine."""
    weights: str = ""
    """Identity of the weights after the call, if that is known."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """Requests that the next step computes for the first time."""

    request_ids: list[str]
    engine: int = 0
    """Rank of their engine, to listeners of several engines."""


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """Outputs of one step."""

    step: StepOutputs
    stats: StepStats | None = None


ToEngine = Add | Abort | Call | Stop
FromEngine = Ready | Answer | Started | Outputs | Connected | Failed | Heartbeat
