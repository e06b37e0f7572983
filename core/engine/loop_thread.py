"""The thread that owns an `EngineCore`: takes calls, steps while there is work, hands on what each step brings.

`Supervised` is driven alike and tells the same listener; its engine has a process of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from core.contracts import StepStats
from core.errors import EngineDead
from core.step import EngineRequest, RequestDelta, StepNews

if TYPE_CHECKING:
    from core.engine.core import EngineCore

log = logging.getLogger(__name__)

Command = tuple[Callable[[], Any] | None, "Future[Any]"]
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


class LoopThread:
    """Makes an engine core and runs it, all in one thread: OpenMP has threads for each thread that calls it, and would
    count more of them than there are cores.

    Calls run between steps, in order; the listener is called from the thread. Nothing restarts the engine.
    """

    def __init__(self, make_core: Callable[[], EngineCore], listener: Listener) -> None:
        self._make_core = make_core
        self._listener = listener
        self._core: EngineCore
        self._made: Future[None] = Future()
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self.run, name="engine-loop", daemon=True)
        self.error: BaseException | None = None
        """What ended the loop, if anything did."""
        self._stopping = self._ended = False
        self._stepping_since_s: float | None = None

    def start(self) -> None:
        """Start the thread and wait until the core is made, in it; raises what that raises."""
        self._thread.start()
        self._made.result()

    @property
    def busy_s(self) -> float:
        """For how long the step under way has been computed; one that hangs shows here."""
        since_s = self._stepping_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request: all of them or none. The futures raise what the engine says against it."""
        return self._call(lambda: self._core.add(requests, resumed=resumed))

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are."""
        return self._call(lambda: self._core.abort(request_ids))

    def reset_prefix_cache(self) -> Future[bool]:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        return self._call(lambda: self._core.reset_prefix_cache())

    def status(self) -> EngineStatus:
        """Say how the engine is."""
        busy_s = self.busy_s
        if self.error is not None or not self._thread.is_alive():
            return EngineStatus("dead", str(self.error or "shut down"))
        if busy_s > SLOW_STEP_S:
            return EngineStatus("stalled", f"a step has taken {busy_s:.0f} s", busy_s)
        return EngineStatus("ready", beat_age_s=busy_s)

    def _call(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the loop's thread, between steps; the future holds what it returns or raises."""
        future: Future[Any] = Future()
        self._inbox.put((function, future))
        if self._ended:
            self._refuse_waiting()
        return future

    def stop(self) -> None:
        """End the loop after the current step and release the core; safe to call twice."""
        if self._stopping:
            return
        self._stopping = True
        self._inbox.put((None, Future()))
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Turn the loop in this thread until `stop` is called or a step raises what ends it."""
        try:
            self._core = self._make_core()
            self._core.observe, self._core.starting = self._listener.observe, self._listener.started
            self._core.nudge = lambda: self._inbox.put((lambda: None, Future()))
        except BaseException as error:  # noqa: BLE001 - it is for the one who starts us
            self._made.set_exception(error)
            return
        self._made.set_result(None)
        try:
            while self._turn():
                pass
        except BaseException as error:
            self.error = error
            log.exception("the engine loop has ended")
            self._listener.died(error)
        finally:
            self._ended = True  # before the inbox is emptied: whoever puts something in later sees it
            self._refuse_waiting()
            self._core.shutdown()

    def _turn(self) -> bool:
        """Take waiting commands, then run one step; block when there is nothing to do."""
        progressed = self._core.has_work and not self._core.blocked
        while True:
            try:
                function, future = self._inbox.get(block=not progressed)
            except queue.Empty:
                break
            if function is None:
                return False
            progressed = True
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 - the caller of the command gets it
                    future.set_exception(error)
        if self._core.has_work:
            self._stepping_since_s = time.monotonic()
            news = self._core.step()
            self._stepping_since_s = None
            self._listener.deliver(news)
        return True

    def _refuse_waiting(self) -> None:
        while True:
            try:
                _, future = self._inbox.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead(f"the engine has stopped: {self.error or 'shut down'}"))
