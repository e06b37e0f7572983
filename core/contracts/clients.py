"""Clients: how whoever serves reaches an engine, wherever that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.serving import StepStats
    from core.step import EngineRequest, RequestDelta, StepNews, WorkerInfo

State = Literal["starting", "ready", "stalled", "restarting", "dead"]

STALLED_S: Final = 3.0
"""Without a sign of life for so long, an engine is not ready."""
SLOW_STEP_S: Final = 60.0
"""Nor is one whose step takes longer than this."""


def _nobody_cares(name: str) -> None:
    """Take what begins, for those who do not want to know."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of the engine; each is called from a thread of the client."""

    deliver: Callable[[StepNews], None]
    """What became known of requests; empty after a step that brought nothing."""
    observe: Callable[[StepStats], None] | None
    """The numbers of each step, where somebody wants them."""
    died: Callable[[BaseException], None]
    """The engine has ended and is not coming back."""
    started: Callable[[list[str]], None]
    """The requests that the step which begins now is the first to compute."""
    stage: Callable[[str], None] = _nobody_cares
    """What begins now, while the engine starts."""


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that has started."""

    config: EngineConfig
    """With every automatic value decided."""
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What probes show."""

    state: State
    reason: str = ""
    beat_age_s: float = 0.0
    """Seconds since the last sign of life of the most silent process."""
    restarts: int = 0
    busy_s: float = 0.0
    """How long the step under way has taken so far."""
    server_restarts: int = 0
    """Times the process that serves was started again by its parent."""

    @classmethod
    def alive(cls, beat_age_s: float, busy_s: float, restarts: int = 0) -> EngineStatus:
        """Return how an engine is that has not ended: ready, unless it is silent or its step takes
        too long.
        """
        state: State = "ready"
        reason = ""
        if beat_age_s > STALLED_S:
            state = "stalled"
            reason = f"no sign of life for {beat_age_s:.0f} s"
        elif busy_s > SLOW_STEP_S:
            state = "stalled"
            reason = f"a step has taken {busy_s:.0f} s"
        return cls(state, reason, beat_age_s, restarts, busy_s)


class Client(Protocol):
    """Starts an engine and speaks to it. Constructed with (config, registry, listener), where a
    start may begin.

    Methods may be called from any thread and return at once, but for `wait` and `stop`. A future
    holds what the engine says, or raises what it says against it: `EngineDead` where there is none
    any more.
    """

    def wait(self) -> Running:
        """Return once the engine takes requests.

        Raises the `EngineError` it could not start for; `stop` it then.
        """

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request, all of them or none; `resumed`: they were accepted
        before, by an earlier engine.
        """

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are; ids that are unknown or ended are passed over."""

    def call(self, name: str, data: bytes = b"") -> Future[list[bytes]]:
        """Ask a feature something between two steps: `name` is "feature.verb", or one of the
        engine's own.

        Returns what its halves answer. Nothing is asked twice: the future raises `EngineDead` when
        the engine ends before it has answered, even if another takes its place.
        """

    def status(self) -> EngineStatus:
        """Say how the engine is."""

    def stop(self) -> None:
        """End the engine after the step under way; safe to call twice and in any state."""
