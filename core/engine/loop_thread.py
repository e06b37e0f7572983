"""The thread that owns an `EngineCore`: takes commands, steps while there is work, hands deltas on."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from core.errors import EngineDead

if TYPE_CHECKING:
    from core.engine.core import EngineCore
    from core.step import StepNews

log = logging.getLogger(__name__)

Command = tuple[Callable[[], Any] | None, "Future[Any]"]


class LoopThread:
    """Makes an engine core and runs it, all in one thread: OpenMP has threads for each thread that calls it, and would
    count more of them than there are cores.

    Commands run between steps, in order. `deliver` (after every step, with what it brought) and `died` are called
    from the thread.
    """

    def __init__(
        self,
        make_core: Callable[[], EngineCore],
        deliver: Callable[[StepNews], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._make_core = make_core
        self._core: EngineCore
        self._made: Future[None] = Future()
        self._deliver = deliver
        self._died = died
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self.run, name="engine-loop", daemon=True)
        self._error: BaseException | None = None
        self._stopping = self._ended = False
        self._stepping_since_s: float | None = None

    def start(self) -> None:
        """Start the thread and wait until the core is made, in it; raises what that raises."""
        self._thread.start()
        self._made.result()

    @property
    def error(self) -> BaseException | None:
        """What ended the loop, if anything did."""
        return self._error

    @property
    def busy_s(self) -> float:
        """For how long the step under way has been computed; one that hangs shows here."""
        since_s = self._stepping_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def is_alive(self) -> bool:
        """Say whether the loop still turns."""
        return self._thread.is_alive() and self._error is None

    def call(self, function: Callable[[], Any]) -> Future[Any]:
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
        except BaseException as error:  # noqa: BLE001 - it is for the one who starts us
            self._made.set_exception(error)
            return
        self._made.set_result(None)
        try:
            while self._turn():
                pass
        except BaseException as error:
            self._error = error
            log.exception("the engine loop has ended")
            self._died(error)
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
            self._deliver(news)
        return True

    def _refuse_waiting(self) -> None:
        while True:
            try:
                _, future = self._inbox.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead(f"the engine has stopped: {self._error or 'shut down'}"))
