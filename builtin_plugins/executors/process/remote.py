"""The parent's side of a child on another host, for launchers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from builtin_plugins.executors.process.messages import Connected, Failed, Start
from builtin_plugins.executors.process.spawn import TICK_S
from builtin_plugins.executors.process.tcp_channel import (
    Credentials,
    Hello,
    StageBegun,
    TcpListener,
)
from core.api import EngineDead, EngineError
from core.api.execution import ProcessKilled

FIRST_STAGE: Final = "waiting for the process"
LAST_MESSAGES_S: Final = 1.0
"""Time for messages that an ended child has sent."""
CHECK_S: Final = 1.0
"""Interval of looks at a child that sends messages all the time."""
END_S: Final = 30.0
"""Longest wait for the end of a killed child."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process has ended."""

    cause: str
    """Cause as words, such as "it exited with status 1"."""
    was_killed: bool = False
    """Something outside of it killed it, as far as is known."""


class RemoteProcess(Protocol):
    """A process on another host, as its launcher watches it."""

    def exit(self) -> Exit | None:
        """Return how it has ended; None while it runs, even if it is frozen."""

    def kill(self) -> None:
        """End it at once; does not wait."""


class RemoteChild:
    """A `ChildProcess` that talks to its parent over TCP."""

    may_be_oom = True
    """Nothing is known about the memory of another host."""

    def __init__(self, listener: TcpListener, start: Start, kinds: Any) -> None:
        """Listen for the child. The launcher starts it with `credentials` and sets `process`."""
        self.name = start.process
        self.host = ""
        self.pid = 0
        self.stage = FIRST_STAGE
        self.process: RemoteProcess
        self.credentials: Credentials
        self._channel, self.credentials = listener.listen(kinds | Hello | StageBegun)
        self._started_s = time.monotonic()
        self._exit: Exit | None = None
        self._end_s = inf
        """When the messages of an ended child have arrived."""
        self._check_s = 0.0
        self._channel.send(start)

    @property
    def label(self) -> str:
        """Name, process id, host and stage, for error messages."""
        where = f" on {self.host}" if self.host else ""
        return f"{self.name!r} (pid {self.pid or '?'}{where}, {self.stage})"

    @property
    def is_alive(self) -> bool:
        """True until its end is known."""
        if self._exit is None:
            self._exit = self.process.exit()
            self._end_s = inf if self._exit is None else time.monotonic() + LAST_MESSAGES_S
        return self._exit is None

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one as bytes; never blocks on a missing child."""
        self._channel.send(message)

    def receive(self, timeout_s: float = TICK_S) -> Any:
        """Return the next message of the child's role, or None after the timeout.

        Raises the child's `EngineError`, or one with its exit reason if it could not send any.
        """
        now_s = time.monotonic()
        # A child that its launcher has lost may live on, and send heartbeats.
        if now_s >= self._end_s:
            raise self._end()
        message = self._channel.receive(timeout_s)
        if message is not None and now_s >= self._check_s:
            self._check_s = now_s + CHECK_S
            self.is_alive  # noqa: B018 - notes an end
        if message is None and not self.is_alive:
            message = self._channel.receive(LAST_MESSAGES_S)
            if message is None:
                raise self._end()
        if isinstance(message, Hello):
            self.pid = message.pid
            self.host = message.host
            self._channel.on_connected()
            return None
        if isinstance(message, StageBegun):
            self.stage = message.name
            return None
        if isinstance(message, Failed):
            raise message.error()
        return None if isinstance(message, Connected) else message

    def _end(self) -> EngineError:
        """Return the error with the stage, cause and time of an unannounced end."""
        found = self._exit or Exit("unknown")
        text = (
            f"process {self.label} has ended\n  stage: {self.stage}\n"
            f"  cause: {found.cause}, {time.monotonic() - self._started_s:.1f} s after its start"
        )
        return ProcessKilled(text) if found.was_killed else EngineDead(text)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        self.process.kill()

    def close(self, grace_s: float = 0.0) -> None:
        """Wait up to `grace_s` for its end, then kill it. May be called twice."""
        self._wait(grace_s)
        if self.is_alive:
            self.kill()
            self._wait(END_S)
        self._channel.close()

    def _wait(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while self.is_alive and time.monotonic() < until_s:
            time.sleep(TICK_S / 4)
