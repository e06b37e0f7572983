"""How `AsyncLLM` drives an engine, whatever process it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from core.contracts import StepStats
from core.step import EngineRequest, RequestDelta, StepNews

State = Literal["starting", "ready", "stalled", "restarting", "dead"]

STALLED_S: Final = 3.0
"""Without a sign of life for so long, an engine is not ready."""
SLOW_STEP_S: Final = 60.0
"""Nor is one whose step takes longer than this."""


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


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What probes show."""

    state: State
    reason: str = ""
    beat_age_s: float = 0.0
    """Seconds since the last sign of life."""
    restarts: int = 0


class EngineClient(Protocol):
    """An engine that runs. Its futures raise what the engine says against the call."""

    def add(self, requests: Sequence[EngineRequest]) -> Future[Any]:
        """Queue the sequences of one request: all of them or none."""

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are."""

    def reset_prefix_cache(self) -> Future[bool]:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""

    def status(self) -> EngineStatus:
        """Say how the engine is."""

    def stop(self) -> None:
        """End the engine; safe to call twice."""
