"""Clients, which connect the frontend to an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.telemetry import StepStats
    from core.step import CallAnswer, EngineRequest, RequestDelta, StepOutputs, WorkerInfo

State = Literal["starting", "ready", "stalled", "restarting", "dead"]

STALLED_S: Final = 3.0
"""Seconds without a heartbeat after which an engine is not ready."""
SLOW_STEP_S: Final = 60.0
"""Seconds a step may take before its engine is not ready."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks from the engine, in a thread of the client."""

    deliver: Callable[[StepOutputs], None]
    """Receives the outputs of each step; they are empty when the step
    produced none.
    """
    observe: Callable[[StepStats], None] | None
    """Receives the statistics of each step; None: they are not sent."""
    died: Callable[[BaseException], None]
    """Called once, when the engine has ended and will not be restarted."""
    started: Callable[[list[str], int], None]
    """Receives the ids of requests that enter the batch,
    and their engine's rank.
    """
    stage: Callable[[str], None] = lambda name: None
    """Receives the name of each start-up stage."""


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that has started."""

    config: EngineConfig
    """Configuration with every automatic value resolved."""
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Engine state for health probes."""

    state: State
    reason: str = ""
    heartbeat_age_s: float = 0.0
    """Seconds since the last heartbeat of the slowest process."""
    restarts: int = 0
    busy_s: float = 0.0
    """Duration of the step in progress, in seconds."""
    server_restarts: int = 0
    """Number of restarts of the serving process by its parent."""
    engines: tuple[EngineStatus, ...] = ()
    """Status of each engine, by rank; empty with one."""

    def to_json(self) -> dict[str, Any]:
        """Return what `/health` shows of one engine of several."""
        return {"status": self.state, "reason": self.reason, "restarts": self.restarts}

    @classmethod
    def alive(cls, heartbeat_age_s: float, busy_s: float, restarts: int = 0) -> EngineStatus:
        """Return the status of a running engine.

        It is ready, or stalled: no heartbeat, no progress.
        """
        state: State = "ready"
        reason = ""
        if heartbeat_age_s > STALLED_S:
            state = "stalled"
            reason = f"no sign of life for {heartbeat_age_s:.0f} s"
        elif busy_s > SLOW_STEP_S:
            state = "stalled"
            reason = f"a step has taken {busy_s:.0f} s"
        return cls(state, reason, heartbeat_age_s, restarts, busy_s)


class Client(Protocol):
    """Starts an engine and connects to it. Constructed with (config,
    registry, listener).

    The start may begin in the constructor. Any thread may call the methods. All but
    `wait` and `stop` return at once; a future holds the engine's answer or its error
    (`EngineDead` when the engine has ended).
    """

    def wait(self) -> Running:
        """Wait until the engine accepts requests. Raises the `EngineError` of a failed start.

        After an error, call `stop`.
        """

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue all sequences of one request, or none.

        `resumed`: an earlier engine had accepted them.
        """

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state; unknown and finished ids are ignored."""

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature (`feature.verb`) or the engine itself, between two
        steps.

        Returns each engine's answer or error; raises the first error if none has
        answered. Calls are never repeated: an engine that dies before it answers has
        `EngineDead`.
        """

    def status(self) -> EngineStatus:
        """Return the engine's status."""

    def stop(self) -> None:
        """Stop the engine after the current step; may be called twice and in any state."""
