"""The client `thread`: an engine in this process, in a thread that takes calls, steps while there
is work, and hands on
what each step brings.
"""

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
from core.engine.core import EngineCore
from core.engine.resolve import resolve
from core.errors import EngineDead, shown
from core.plugin import Registry
from core.step import EngineRequest, RequestDelta

log = logging.getLogger(__name__)

Command = tuple[Callable[[], Any] | None, "Future[Any]"]


class ThreadClient:
    """Makes an engine core and runs it, all in one thread: OpenMP has threads for each thread that
    calls it, and would
    count more of them than there are cores.

    Calls run between steps, in order; the listener is called from the thread. Nothing restarts the
    engine.
    """

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        self._config = config
        self._registry = registry
        self._listener = listener
        self._core: EngineCore
        self._running: Future[Running] = Future()
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._error: BaseException | None = None
        """What ended the loop, if anything did."""
        self._stopping = self._ended = False
        self._stepping_since_s: float | None = None

    def wait(self) -> Running:
        """Start the thread, and the engine in it; raises what that raises."""
        self._thread.start()
        return self._running.result()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request: all of them or none."""
        return self._soon(lambda: self._core.add(requests, resumed=resumed))

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are."""
        return self._soon(lambda: self._core.abort(request_ids))

    def call(self, name: str, data: bytes = b"") -> Future[list[bytes]]:
        """Ask a feature something."""
        return self._soon(lambda: self._core.call(name, data))

    def status(self) -> EngineStatus:
        """Say how the engine is; its silence is that of the executor's processes."""
        if self._error is not None or not self._thread.is_alive():
            return EngineStatus("dead", shown(self._error))
        if not self._running.done():
            return EngineStatus("starting")
        since_s = self._stepping_since_s
        return EngineStatus.alive(
            self._core.silence_s(), 0.0 if since_s is None else time.monotonic() - since_s
        )

    def _soon(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the loop's thread, between steps; the future holds what it returns or
        raises.
        """
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

    def _run(self) -> None:
        """Turn the loop until `stop` is called or a step raises what ends it."""
        try:
            running = self._open()
        except BaseException as error:  # noqa: BLE001 - it is for the one who waits
            self._running.set_exception(error)
            return
        self._running.set_result(running)
        try:
            while self._turn():
                pass
        except BaseException as error:
            self._error = error
            log.exception("the engine loop has ended")
            self._listener.died(error)
        finally:
            self._ended = (
                True  # before the inbox is emptied: whoever puts something in later sees it
            )
            self._refuse_waiting()
            self._core.shutdown()

    def _open(self) -> Running:
        self._listener.stage("deciding the configuration")
        built = build(
            resolve(self._config, self._registry, serving=True),
            self._registry,
            self._listener.stage,
        )
        self._core = built.core
        try:
            self._registry.check_combination()
        except BaseException:
            self._core.shutdown()
            raise
        self._core.observe = self._listener.observe
        self._core.starting = self._listener.started
        self._core.nudge = lambda: self._inbox.put((lambda: None, Future()))
        return Running(built.config, built.info)

    def _turn(self) -> bool:
        """Take waiting commands, then run one step; block when there is nothing to do, and a moment
        for more of a kind.
        """
        progressed = self._core.has_work and not self._core.blocked
        while True:
            try:
                function, future = self._inbox.get(
                    timeout=self._core.patience_s() if progressed else None
                )
            except queue.Empty:
                break
            if function is None:
                return False
            progressed = True
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)  # the caller of the command gets it
                    if isinstance(error, EngineDead):
                        raise  # there is nothing left that could be asked or run anything else
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
                future.set_exception(EngineDead(f"the engine has stopped: {shown(self._error)}"))
