"""The client of an API server: talks to the broker, which has the engines."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.clients.broker.messages import (
    FeatureCall,
    Memory,
    Page,
    ReadPage,
    Status,
    ToApiServer,
)
from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Outputs,
    Ready,
    Started,
)
from builtin_plugins.executors.api import TICK_S
from core.api import EngineDead, EngineError
from core.api.execution import CallAnswer, EngineRequest, RequestDelta
from core.api.serving import EngineStatus, Listener, Running
from core.api.telemetry import StepStats

if TYPE_CHECKING:
    from builtin_plugins.executors.api import ParentChannel

MEMORY_S: Final = 10.0
"""Interval of memory reports, in seconds."""
PAGE_S: Final = 10.0
"""Timeout of a metrics page, in seconds."""


class BrokerClient:
    """Implements the contract of clients over the channel to the broker."""

    def __init__(
        self,
        channel: ParentChannel,
        listener: Listener,
        memory: Callable[[], bytes],
        options: Mapping[str, Any],
        reading: Collection[str] = (),
    ) -> None:
        """`memory` returns a report of this process's memory.

        `options` are those of API servers that the engines' configuration does not have;
        `reading` are the calls that only read, which routes of this process add to.
        """
        self._options = options
        self._reading = reading
        channel.expect(ToApiServer)
        self._memory = memory
        self._reported_s = -inf
        self._channel = channel
        self._listener = listener
        self._lock = threading.Lock()
        self._handlers: dict[int, Callable[[Any], None]] = {}
        self._num_calls = 0
        self._open: set[str] = set()
        self._ready: Future[Running] = Future()
        self._status = EngineStatus("starting")
        self._status_s = time.monotonic()
        self._is_stopped = False
        self.open_requests = 0
        """Open requests of all API servers."""
        self.stats: Sequence[StepStats] = ()
        """The last statistics of each engine."""
        self._thread = threading.Thread(target=self._listen, name="broker", daemon=True)
        self._thread.start()

    def wait(self) -> Running:
        """Wait until the engines are ready."""
        return self._ready.result()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request."""
        future: Future[Any] = Future()
        ids = [request.request_id for request in requests]

        def accepted(answer: Answer | None) -> None:
            if answer is None or answer.fault is not None:
                self._open.difference_update(ids)
            _complete(future, answer, None)

        self._open.update(ids)
        self._send(lambda call: Add(call, list(requests), resumed), accepted)
        return future

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        future: Future[list[RequestDelta]] = Future()
        known = [each for each in request_ids if each in self._open]
        self._open.difference_update(known)
        if known:
            self._channel.send(Abort(0, known))
        deltas = [RequestDelta(request_id=each, finish_reason="abort") for each in known]
        future.set_result(deltas)
        return future

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature in every engine."""
        future: Future[list[CallAnswer]] = Future()
        self._send(
            lambda call: FeatureCall(call, name, data, name in self._reading),
            lambda answer: _complete(future, answer, answer and answer.found),
        )
        return future

    def status(self) -> EngineStatus:
        """Return the last known status of the engines."""
        status = self._status
        if self._is_stopped:
            return dataclasses.replace(status, state="dead", reason="shut down")
        if status.state != "ready":
            return status
        age_s = status.heartbeat_age_s + time.monotonic() - self._status_s
        now = EngineStatus.alive(age_s, status.busy_s)
        return dataclasses.replace(
            status,
            state=now.state,
            reason=status.reason or now.reason,
            heartbeat_age_s=age_s,
        )

    def stop(self) -> None:
        """Fail the calls without an answer; the engines belong to the broker."""
        self._is_stopped = True
        with self._lock:
            handlers = list(self._handlers.values())
            self._handlers.clear()
        for handler in handlers:
            handler(None)
        self._thread.join()  # the channel is closed next

    def send(self, message: Any) -> None:
        """Send the broker a message that has no answer."""
        self._channel.send(message)

    def page(self, health: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the metrics page that all API servers share, and its content type."""
        future: Future[Page | None] = Future()
        self._channel.send(Memory(self._memory()))
        encoded = msgspec.msgpack.encode(health, enc_hook=str)
        self._send(lambda call: ReadPage(call, encoded), future.set_result)
        page = future.result(PAGE_S)
        if page is None or page.error:
            raise EngineError(f"no metrics page: {'shut down' if page is None else page.error}")
        return page.body, page.content_type

    def _send(self, message: Callable[[int], Any], handler: Callable[[Any], None]) -> None:
        with self._lock:
            self._num_calls += 1
            call = self._num_calls
            self._handlers[call] = handler
        if self._is_stopped:
            self._answer(call, None)
        else:
            self._channel.send(message(call))

    def _answer(self, call: int, message: Any) -> None:
        with self._lock:
            handler = self._handlers.pop(call, None)
        if handler is not None:
            handler(message)

    # --- in the thread that listens to the broker; this process ends with the broker

    def _listen(self) -> None:
        while not self._is_stopped:
            message = self._channel.receive(TICK_S)
            match message:
                case Outputs(step):
                    self._open.difference_update(
                        delta.request_id for delta in step.deltas if delta.finish_reason is not None
                    )
                    self._listener.deliver(step)
                case Answer(call) | Page(call):
                    self._answer(call, message)
                case Started(request_ids, engine):
                    self._listener.started(request_ids, engine)
                case Status():
                    self._note(message)
                case Ready(config, info):
                    options = {**config.options, **self._options}
                    config = dataclasses.replace(config, options=options)
                    self._status = dataclasses.replace(self._status, state="ready")
                    self._status_s = time.monotonic()
                    self._ready.set_result(Running(config, info))

    def _note(self, message: Status) -> None:
        was_dead = self._status.state == "dead"
        self._status = message.status
        self._status_s = time.monotonic()
        self.open_requests = message.open_requests
        self.stats = message.stats
        if self._status_s > self._reported_s + MEMORY_S:
            self._reported_s = self._status_s
            self._channel.send(Memory(self._memory()))
        if message.status.state == "dead" and not was_dead:
            self._listener.died(EngineDead(message.status.reason))


def _complete(future: Future[Any], answer: Answer | None, result: Any) -> None:
    """Set the result of a future, or the error in its answer, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if answer is None:
        future.set_exception(EngineDead("shut down"))
    elif answer.fault is not None:
        future.set_exception(answer.fault.error())
    else:
        future.set_result(result)
