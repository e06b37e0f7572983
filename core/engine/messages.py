"""What the engine's process and the one that serves its clients say to each other."""

from __future__ import annotations

import msgspec

from core.config import EngineConfig
from core.contracts import StepStats
from core.errors import EngineError, InvalidRequest, error_called
from core.process.messages import Beat, Connected, Failed
from core.step import EngineRequest, StepNews, WorkerInfo


class Add(msgspec.Struct, frozen=True, tag=True):
    """Queue the sequences of one request."""

    call: int
    requests: list[EngineRequest]
    resumed: bool = False
    """They were accepted before, in an earlier life of the engine."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End requests early."""

    call: int
    request_ids: list[str]


class ResetCache(msgspec.Struct, frozen=True, tag=True):
    """Forget cached prompt beginnings."""

    call: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Fault(msgspec.Struct, frozen=True):
    """An exception of ours on its way to the caller."""

    kind: str
    message: str
    field: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Describe an exception."""
        if isinstance(error, InvalidRequest):
            return cls("InvalidRequest", str(error).removeprefix(f"{error.field}: "), error.field)
        return cls(type(error).__name__, str(error))

    def error(self) -> EngineError:
        """Return the exception again; one that is not ours as an `EngineError` that names it."""
        if self.field is not None:
            return InvalidRequest(self.field, self.message)
        return error_called(self.kind, self.message) or EngineError(f"{self.kind}: {self.message}")


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    config: EngineConfig
    """With every automatic value decided."""
    info: WorkerInfo


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What became of a call."""

    call: int
    fault: Fault | None = None
    done: bool = True
    """False where the engine could not do it."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """The requests that the step which begins now is the first to compute."""

    request_ids: list[str]


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What one step brought."""

    news: StepNews
    stats: StepStats | None = None


ToEngine = Add | Abort | ResetCache | Stop
FromEngine = Ready | Answer | Started | Outputs | Connected | Failed | Beat
