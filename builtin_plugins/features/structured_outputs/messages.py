"""Messages between the scheduler half and the worker halves; opaque bytes to the kernel."""

from __future__ import annotations

import msgspec

from builtin_plugins.executors.api import RemoteError
from builtin_plugins.output_parsers.api import ReasoningBounds
from core.api import EngineError
from core.api.sampling import StructuredOutputsParams

NAME = "structured_outputs"


class PrepareMask(msgspec.Struct, array_like=True, frozen=True):
    """A request needs a mask before it can start or resume."""

    request_id: str
    params: StructuredOutputsParams
    length: int
    """Number of its tokens so far."""
    prompt_end: list[int]
    output: list[int]
    stops: list[int]
    reasoning: ReasoningBounds | None = None


class StepChanges(msgspec.Struct, array_like=True, frozen=True):
    """What a step changes for the workers."""

    ended: list[int] = []
    """Rows that are free now."""
    new: list[tuple[int, str]] = []
    """(row, request id) of new constrained rows."""
    soon: list[PrepareMask] = []
    """Masks to prepare."""
    gone: list[str] = []
    """Ids of finished requests."""


class MaskReady(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The mask after `length` tokens is ready."""

    request_id: str
    rank: int
    length: int
    compile_s: float = 0.0
    """CPU time of the constraint's compilation; 0 if it was cached."""


class MaskTiming(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A request's masks now take longer than a step may wait, or no longer do."""

    request_id: str
    rank: int
    is_slow: bool


class MaskLate(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The step ran without the request's mask, so its sampled token is invalid."""

    request_id: str
    rank: int


class MaskFailed(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The request gets no further masks."""

    request_id: str
    rank: int
    fault: RemoteError
    budget: str = ""
    """The exceeded budget's setting; empty for other failures."""


class MaskLost(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The request's grammar process died; another one can go on from the request's tokens."""

    request_id: str
    rank: int
    fault: RemoteError
    pid: int = 0
    """The process; 0 if it had not started."""
    is_killed: bool = False
    """It is known that the process was killed from outside."""


MaskMessage = MaskReady | MaskTiming | MaskLate | MaskFailed | MaskLost


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """Per-request results for the admission half."""

    num_late: int = 0
    wait_s: float = 0.0
    """Seconds from the request's turn to its first mask."""
    compile_s: float = 0.0
    fault: RemoteError | None = None
    budget: str = ""

    def counts(self) -> dict[str, float]:
        """Return the values for the metrics."""
        counted = {
            "constraint_late_masks": float(self.num_late),
            "constraint_compile_cpu_seconds": self.compile_s,
        }
        if self.budget:
            stage = "compile" if self.budget.startswith("compile") else "mask"
            counted[f"constraint_{stage}_failures"] = 1.0
        return {**counted, "constraint_wait_seconds": self.wait_s}

    def error(self) -> EngineError | None:
        """Return the error that the request failed with, if any."""
        return None if self.fault is None else self.fault.error()
