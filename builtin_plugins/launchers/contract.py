"""What a launcher is, and the child processes that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from builtin_plugins.executors.api import Start


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that work together: the ranks of one engine, or one engine alone."""

    name: str
    """Name in messages; unique among the groups of one launcher."""
    size: int = 1
    """Number of processes. `Start.rank` numbers them from 0 in a group of several."""
    leads: bool = False
    """Each process leads a process group: signals from the terminal do not reach it, and killing it
    kills the processes it started.
    """
    outlives_parent: bool = False
    """The processes may outlive the one that starts them, if the launcher can hand them to its
    successor.
    """


class ChildProcess(Protocol):
    """A started process, as its parent sees it.

    Any thread may call `send`; one thread calls `receive`.
    """

    name: str
    """`Start.process`."""
    host: str
    """Address of the host it runs on; empty for this machine."""

    @property
    def pid(self) -> int:
        """Process id on its host; 0 until it has connected."""

    @property
    def stage(self) -> str:
        """The start-up stage it reported last."""

    @property
    def label(self) -> str:
        """Name, process id, host and stage, for error messages."""

    @property
    def is_alive(self) -> bool:
        """True until its end is known; true while it is frozen."""

    @property
    def may_be_oom(self) -> bool:
        """True if the out-of-memory killer may have ended it."""

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one as bytes; never blocks on a missing child."""

    def receive(self, timeout_s: float = ...) -> Any:
        """Return the next message, or None after the timeout.

        After the last message raises `EngineError` with the child's own error, or with the reason
        of its exit: `ProcessKilled` if something killed it, otherwise `EngineDead`.
        """

    def kill(self) -> None:
        """End the process at once, frozen or not; does not wait."""

    def close(self, grace_s: float = 0.0) -> None:
        """Wait up to `grace_s` for its end, then kill it and release its resources.

        May be called twice.
        """


class Launcher(Protocol):
    """Starts processes of the engine. Constructed with (config, registry).

    After the death of their parent, children end by themselves, unless their group outlives it.
    """

    host: str
    """Address of this process for its children; empty if they run on this machine."""

    def start(
        self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group
    ) -> ChildProcess:
        """Start `what.target` in a new process and return at once.

        `kinds` is the union of messages that the child sends. `environment` is set before Python
        starts. A process that cannot be started raises `EngineError` here, or from `receive`.
        """

    def close(self) -> None:
        """Release what the groups share; their children are closed. May be called twice."""
