"""What every process of an engine says to the one that started it, and is told first.

Plain msgspec structs: nothing that crosses a socket can carry code. A role adds messages of its
own.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.config import EngineConfig
from core.errors import EngineError, InvalidRequest, error_called
from core.plugin import PluginPlan


class Start(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The first message to a process: all it needs to know."""

    target: str
    """`module:function` to run, with (start, registry, channel)."""
    process: str
    """Its name in logs and errors: "engine", "worker 1"."""
    plan: PluginPlan
    """Plugins to load; a process that has others installed refuses to start."""
    config: EngineConfig
    sys_path: list[str]
    """Where the starting process finds modules; searched after everything else."""
    log_level: str = "warning"
    rank: int = 0


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The process has got its `Start`."""


class Failed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The process has to end, and why."""

    process: str
    stage: str
    kind: str
    """Name of the exception's class."""
    message: str

    def error(self) -> EngineError:
        """Return the exception to raise where the process was started: of the same class, if it is
        one of ours.
        """
        where = f"  stage: {self.stage}, in process {self.process!r}"
        unknown = (
            f"process {self.process!r} has failed\n{where}\n  cause: {self.kind}: {self.message}"
        )
        return error_called(self.kind, f"{self.message}\n{where}") or EngineError(unknown)


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


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, sent about every second by a thread that does nothing else."""

    busy_s: float = 0.0
    """How long the step under way has taken so far."""
    silence_s: float = 0.0
    """How long the most silent process below this one has given no sign of life."""


BEAT_S: Final = 1.0
"""Seconds between two beats."""
