"""How `AsyncLLM` drives an engine, whatever process it runs in; and the engine in a thread of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from core.contracts import StepStats
from core.engine.loop_thread import LoopThread
from core.step import EngineRequest, RequestDelta, StepNews

if TYPE_CHECKING:
    from core.engine.core import EngineCore

State = Literal["starting", "ready", "stalled", "restarting", "dead"]

STALLED_S: Final = 3.0
"""Without a sign of life for so long, an engine is not ready."""
SLOW_STEP_S: Final = 60.0
"""Nor is one whose step takes longer than this."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of the engine; each is called from a thread of the client."""

    deliver: Callable[[Iterable[RequestDelta]], None]
    """What became known of requests."""
    observe: Callable[[StepStats], None]
    """The numbers of each step."""
    died: Callable[[BaseException], None]
    """The engine has ended and is not coming back."""
    started: Callable[[Sequence[str]], None] = lambda engine_ids: None
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


class InProcess:
    """An engine core in a thread of this process. Nothing restarts it."""

    def __init__(self, make_core: Callable[[], EngineCore], listener: Listener) -> None:
        """Make the core in the thread it will run in; raises what that raises."""
        self._listener = listener
        self._core: EngineCore

        def make() -> EngineCore:
            self._core = make_core()
            self._core.observe, self._core.starting = listener.observe, listener.started
            return self._core

        self._loop = LoopThread(make, self._deliver, listener.died)
        self._loop.start()

    def add(self, requests: Sequence[EngineRequest]) -> Future[Any]:
        """Queue the sequences of one request."""
        return self._loop.call(lambda: self._core.add(requests))

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests."""
        return self._loop.call(lambda: self._core.abort(request_ids))

    def reset_prefix_cache(self) -> Future[bool]:
        """Forget cached prompt beginnings."""
        return self._loop.call(self._core.reset_prefix_cache)

    def status(self) -> EngineStatus:
        """Say how the engine is."""
        busy_s = self._loop.busy_s
        if not self._loop.is_alive:
            return EngineStatus("dead", str(self._loop.error or "shut down"))
        if busy_s > SLOW_STEP_S:
            return EngineStatus("stalled", f"a step has taken {busy_s:.0f} s", busy_s)
        return EngineStatus("ready", beat_age_s=busy_s)

    def stop(self) -> None:
        """End the loop after the step under way."""
        self._loop.stop()

    def _deliver(self, news: StepNews) -> None:
        if news:
            self._listener.deliver(news)
