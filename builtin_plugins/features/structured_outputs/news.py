"""What the scheduler half and the worker halves tell each other: bytes to the kernel, which carries
them.
"""

from __future__ import annotations

import msgspec

from core.api import EngineError, StructuredOutputsParams
from core.process.messages import Fault

NAME = "structured_outputs"


class Prepare(msgspec.Struct, array_like=True, frozen=True):
    """A request that waits for its mask, to begin or to go on."""

    request_id: str
    params: StructuredOutputsParams
    length: int
    """Its tokens so far."""
    prompt_end: list[int]
    output: list[int]
    stops: list[int]


class News(msgspec.Struct, array_like=True, frozen=True):
    """What a step changes for the workers."""

    ended: list[int] = []
    """Rows that are nobody's."""
    new: list[tuple[int, str]] = []
    """Rows of constrained requests."""
    soon: list[Prepare] = []
    gone: list[str] = []
    """Requests that have ended."""


class Ready(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The mask behind so many tokens is there."""

    request_id: str
    rank: int
    length: int
    compile_s: float = 0.0
    """CPU time that its constraint took to compile; 0 where that was there already."""


class Pace(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """From now on the masks of a request take longer than a step may wait, or no longer do."""

    request_id: str
    rank: int
    is_slow: bool


class Late(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The step went without the request's mask: its token is none."""

    request_id: str
    rank: int


class Failed(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """There will be no mask."""

    request_id: str
    rank: int
    fault: Fault
    budget: str = ""
    """The setting whose bound it was."""


Told = Ready | Pace | Late | Failed


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What the edge is told of a request."""

    num_late: int = 0
    wait_s: float = 0.0
    """From its turn to its first mask."""
    compile_s: float = 0.0
    fault: Fault | None = None
    budget: str = ""

    def counts(self) -> dict[str, float]:
        """Return what metrics count of it."""
        counted = {
            "constraint_late_masks": float(self.num_late),
            "constraint_compile_cpu_seconds": self.compile_s,
        }
        if self.budget:
            counted[
                f"constraint_{'compile' if self.budget.startswith('compile') else 'mask'}_failures"
            ] = 1.0
        return {**counted, "constraint_wait_seconds": self.wait_s}

    def error(self) -> EngineError | None:
        """Return what it has failed of."""
        return None if self.fault is None else self.fault.error()
