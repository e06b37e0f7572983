"""The client `thread`: the engine runs in a thread of this process."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from core.config import EngineConfig
from core.contracts.clients import EngineStatus, Listener, Running
from core.engine.build import build
from core.engine.loop import EngineCore
from core.engine.resolve import resolve
from core.errors import EngineDead, public_message
from core.plugin import Registry
from core.scheduler.dump import describe
from core.step import CallAnswer, EngineRequest, RequestDelta

log = logging.getLogger(__name__)

Command = tuple[Callable[[], Any] | None, "Future[Any]"]


class ThreadClient:
    """Builds and runs an engine core in one thread.

    One thread, because OpenMP has a pool of threads per calling thread: two pools would
    exceed the number of cores. Calls run between steps, in order. The thread calls the
    listener. The engine is not restarted.
    """

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        self._config = config
        self._registry = registry
        self._listener = listener
        self._core: EngineCore
        self._running: Future[Running] = Future()
        self._inbox: queue.Queue[Command] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._error: BaseException | None = None
        """Exception that ended the loop, if one did."""
        self._stopping = False
        self._ended = False
        self._step_started_s: float | None = None

    def wait(self) -> Running:
        """Start the thread and the engine in it; raises the engine's start-up error."""
        self._thread.start()
        return self._running.result()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue all sequences of one request, or none."""
        return self._run_soon(lambda: self._core.add(requests, resumed=resumed))

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        return self._run_soon(lambda: self._core.abort(request_ids))

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature between two steps."""
        return self._run_soon(lambda: [self._core.call(name, data)])

    def status(self) -> EngineStatus:
        """Return the engine's status; its heartbeat is that of the slowest executor process."""
        if self._error is not None or not self._thread.is_alive():
            return EngineStatus("dead", public_message(self._error))
        if not self._running.done():
            return EngineStatus("starting")
        started_s = self._step_started_s
        busy_s = 0.0 if started_s is None else time.monotonic() - started_s
        return EngineStatus.alive(self._core.silence_s(), busy_s)

    def _run_soon(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the loop's thread between steps; return a future of its result."""
        future: Future[Any] = Future()
        self._inbox.put((function, future))
        if self._ended:
            self._refuse_waiting()
        return future

    def stop(self) -> None:
        """End the loop after the current step and release the core; may be called twice."""
        if self._stopping:
            return
        self._stopping = True
        self._inbox.put((None, Future()))
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Run the loop until `stop` or a fatal exception."""
        try:
            running = self._open()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._running.set_exception(error)
            return
        self._running.set_result(running)
        try:
            while self._run_once():
                pass
        except BaseException as error:
            self._error = error
            state = describe(self._core.scheduler)
            log.exception("the engine loop ended; %s", state)
            self._listener.died(error)
        finally:
            # set before the inbox is emptied, for concurrent `_run_soon`
            self._ended = True
            self._refuse_waiting()
            self._core.shutdown()

    def _open(self) -> Running:
        self._listener.stage("deciding the configuration")
        resolved = resolve(self._config, self._registry, serving=True)
        built = build(resolved, self._registry, self._listener.stage)
        self._core = built.core
        try:
            self._registry.check_combination()
        except BaseException:
            self._core.shutdown()
            raise
        self._core.observe = self._listener.observe
        started = self._listener.started
        self._core.starting = lambda ids: started(ids, 0)
        self._core.notify = lambda: self._inbox.put((lambda: None, Future()))
        return Running(built.config, built.info)

    def _run_once(self) -> bool:
        """Run waiting commands, then one step; return False to stop.

        Blocks while there is nothing to do, and during the batching window.
        """
        progressed = self._core.has_work and not self._core.blocked
        while True:
            timeout_s = self._core.batching_window_s() if progressed else None
            try:
                function, future = self._inbox.get(timeout=timeout_s)
            except queue.Empty:
                break
            if function is None:
                return False
            progressed = True
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
                    if isinstance(error, EngineDead):
                        raise  # no later command or step can succeed
        if self._core.has_work:
            self._step_started_s = time.monotonic()
            outputs = self._core.step()
            self._step_started_s = None
            self._listener.deliver(outputs)
        return True

    def _refuse_waiting(self) -> None:
        while True:
            try:
                _, future = self._inbox.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                reason = public_message(self._error)
                future.set_exception(EngineDead(f"the engine has stopped: {reason}"))
