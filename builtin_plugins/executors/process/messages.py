"""Messages of an engine's child processes to their parent, and the first
message to a child.

Plain msgspec structs, which cannot carry code. Clients and executors add their own
messages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api import EngineConfig, EngineError, InvalidRequest
from core.api.execution import error_by_name
from core.api.plugins import PluginPlan


class Start(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The first message to a process, with everything it needs."""

    target: str
    """`module:function` to run, with (start, registry, channel)."""
    process: str
    """Name of the process in logs and errors: "engine", "worker 1"."""
    plan: PluginPlan
    """Plugins to load; a process with other ones installed refuses
    to start.
    """
    config: EngineConfig
    sys_path: list[str]
    """Module search path of the parent, appended to the process's own."""
    log_level: str = "warning"
    rank: int = 0


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The process has received its `Start`."""


class Failed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The process ends because of an exception."""

    process: str
    stage: str
    kind: str
    """Class name of the exception."""
    message: str

    def error(self) -> EngineError:
        """Return the exception for the parent, of the same class if it is an
        engine error.
        """
        where = f"  stage: {self.stage}, in process {self.process!r}"
        known = error_by_name(self.kind, f"{self.message}\n{where}")
        if known is not None:
            return known
        cause = f"  cause: {self.kind}: {self.message}"
        return EngineError(f"process {self.process!r} has failed\n{where}\n{cause}")


class RemoteError(msgspec.Struct, frozen=True):
    """An exception on its way to the caller in another process."""

    kind: str
    message: str
    field: str | None = None

    @classmethod
    def from_exception(cls, error: BaseException) -> RemoteError:
        """Return the message for an exception."""
        if isinstance(error, InvalidRequest):
            message = str(error).removeprefix(f"{error.field}: ")
            return cls("InvalidRequest", message, error.field)
        return cls(type(error).__name__, str(error))

    def error(self) -> EngineError:
        """Return the exception; one of another class becomes an `EngineError`
        that names it.
        """
        if self.field is not None:
            return InvalidRequest(self.field, self.message)
        known = error_by_name(self.kind, self.message)
        return known or EngineError(f"{self.kind}: {self.message}")


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent about every second by a dedicated thread."""

    busy_s: float = 0.0
    """Duration of the step in progress, in seconds."""
    silence_s: float = 0.0
    """Seconds since the last heartbeat of the slowest process below
    this one.
    """


HEARTBEAT_S: Final = 1.0
"""Seconds between two heartbeats."""
