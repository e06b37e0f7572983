"""The broker: owns the engines' client, and serves several API servers with it.

So there is one balancer, one ledger of requests and one set of metrics, whichever API server has a
connection. The end of an API server ends its requests and no others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import msgspec

from builtin_plugins.clients.broker.messages import (
    FeatureCall,
    Memory,
    Observed,
    Page,
    ReadPage,
    Status,
)
from builtin_plugins.clients.broker.open_requests import (
    OpenGroup,
    OpenRequests,
    Session,
    request_id_of,
)
from builtin_plugins.clients.broker.sinks import SharedSinks
from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Outputs,
    Ready,
    Started,
)
from builtin_plugins.clients.reading_calls import reading_calls
from builtin_plugins.executors.api import RemoteError
from core.api import EngineConfig, InvalidRequest, Registry
from core.api.execution import CallAnswer, RequestDelta, StepOutputs
from core.api.serving import Client, Listener, Running
from core.api.telemetry import StepStats

log = logging.getLogger(__name__)

STATUS_S: Final = 1.0
"""Longest interval of status messages, in seconds."""
SHORTEST_STATUS_S: Final = 0.05
"""Shortest interval of status messages, in seconds."""
OPEN_IDS: Final = "broker.open_ids"
"""Call that returns the ids of the open requests of all API servers, as JSON."""
ABORT: Final = "broker.abort"
"""Call that aborts the request of an id, whichever API server has it."""


class EngineBroker:
    """Serves API servers with one client of the engines.

    A session's calls come from one thread each; outputs come from threads of the client.
    """

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        """Start the engines; `wait` until they are ready."""
        self._registry = registry
        self._lock = threading.Lock()
        """Guards sessions; held for no call of the client."""
        self._sessions: list[Session] = []
        self._open = OpenRequests()
        self._last_stats: dict[int, StepStats] = {}
        self._running: Running | None = None
        self._changed = threading.Event()
        self._is_stopped = False
        self._pages = ThreadPoolExecutor(1, "metrics-page")
        self.sinks = SharedSinks(config, registry)
        size = config.parallel.data_parallel_size
        make = registry.load(registry.choose("clients", facts={"data_parallel_size": size}))
        listener = Listener(
            deliver=self._deliver,
            observe=None if config.observability.disable_log_stats else self._observe,
            died=lambda error: self._changed.set(),
            started=self._started,
        )
        self._client: Client = make(config, registry, listener)
        self._reporter = threading.Thread(target=self._report, name="broker-status", daemon=True)

    def wait(self) -> None:
        """Wait until the engines are ready. Raises the error of a failed start."""
        running = self._client.wait()
        self.sinks.call("ready", running.config)
        with self._lock:
            self._running = running
            sessions = list(self._sessions)
        for session in sessions:
            session.send(Ready(running.config, running.info))
        self._reporter.start()

    @property
    def is_dead(self) -> bool:
        """Return whether no engine will compute requests any more."""
        return self._client.status().state == "dead"

    def stop(self) -> None:
        """Stop the engines."""
        self._is_stopped = True
        self._changed.set()
        self._client.stop()

    # --- sessions, each in its own thread

    def open(self, send: Callable[[Any], None]) -> Session:
        """Return the session of a new API server; `send` sends it a message."""
        session = Session(send)
        with self._lock:
            self._sessions.append(session)
            running = self._running
        if running is not None:
            send(self._status())
            send(Ready(running.config, running.info))
        return session

    def close(self, session: Session) -> None:
        """Abort the requests of an API server that has ended."""
        with self._lock:
            self._sessions.remove(session)
        groups = self._open.close_session(session)
        ids = [name for group in groups for name in group.sequences]
        for group in groups:
            if group.accepted is not None:
                group.accepted.cancel()
        if ids:
            log.warning("%d requests of an API server that has ended are aborted", len(groups))
            self._client.abort(ids)
        self._changed.set()

    def receive(self, session: Session, message: Any) -> None:
        """Handle a message of an API server."""
        match message:
            case Add():
                self._add(session, message)
            case Abort():
                self._abort(message)
            case FeatureCall():
                self._call(session, message)
            case Observed():
                self.sinks.observed(message)
            case Memory(report):
                session.memory = report
            case ReadPage(call, health):
                self._pages.submit(self._page, session, call, health)

    def _add(self, session: Session, message: Add) -> None:
        ids = [request.request_id for request in message.requests]
        group = self._open.open(session, ids)
        if group is None:
            name = request_id_of(ids)
            error = InvalidRequest("request_id", f"{name!r} is in use by another request.")
            session.send(Answer(message.call, RemoteError.from_exception(error)))
            return
        self._changed.set()
        group.accepted = self._client.add(message.requests, resumed=message.resumed)
        group.accepted.add_done_callback(partial(self._accepted, group, message.call))

    def _accepted(self, group: OpenGroup, call: int, future: Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._open.close(group)
            self._changed.set()
        fault = None if error is None else RemoteError.from_exception(error)
        group.session.send(Answer(call, fault))

    def _abort(self, message: Abort) -> None:
        ids, ended = self._open.close_sequences(message.request_ids)
        for group in ended:
            if group.accepted is not None:
                group.accepted.cancel()  # it may wait until its engine is back
        if ids:
            self._client.abort(ids)
        self._changed.set()

    def _call(self, session: Session, message: FeatureCall) -> None:
        call = message.call
        if message.name == OPEN_IDS:
            ids = msgspec.json.encode(self._open.ids())
            session.send(Answer(call, found=[CallAnswer(scheduler=ids)]))
            return
        if message.name == ABORT:
            self._abort_elsewhere(message.data.decode())
            session.send(Answer(call))
            return

        def answered(future: Future[list[CallAnswer]]) -> None:
            error = future.exception()
            if error is None:
                session.send(Answer(call, found=future.result()))
            else:
                session.send(Answer(call, RemoteError.from_exception(error)))

        if message.only_reads:
            reading_calls(self._registry).add(message.name)
        self._client.call(message.name, message.data).add_done_callback(answered)

    def _abort_elsewhere(self, request_id: str) -> None:
        """Abort a request; its API server gets the last outputs."""
        group = self._open.close_id(request_id)
        if group is not None:
            ids = list(group.sequences)
            self._client.abort(ids)
            deltas = [RequestDelta(request_id=each, finish_reason="abort") for each in ids]
            group.session.send(Outputs(StepOutputs(deltas=deltas)))
            self._changed.set()

    def _page(self, session: Session, call: int, health: bytes) -> None:
        found: dict[str, Any] = msgspec.msgpack.decode(health)
        found["open_requests"] = len(self._open)
        with self._lock:
            reports = [each.memory for each in self._sessions if each.memory]
        engine = (found.get("memory") or {}).get("engine") or ()
        found["memory"] = {"engine": [*engine, *reports]}
        try:
            session.send(Page(call, *self.sinks.page(found)))
        except Exception as error:  # noqa: BLE001 - the API server reports it
            session.send(Page(call, b"", "", f"{type(error).__name__}: {error}"))

    # --- the engines, in threads of the client

    def _started(self, request_ids: list[str], engine: int) -> None:
        for session, ids in self._open.by_session(request_ids).items():
            session.send(Started(ids, engine))

    def _observe(self, stats: StepStats) -> None:
        before = self._last_stats.get(stats.engine)
        self._last_stats[stats.engine] = stats
        self.sinks.call("step", stats)
        if before is None or (before.num_running, before.num_waiting) != (
            stats.num_running,
            stats.num_waiting,
        ):
            self._changed.set()

    def _deliver(self, outputs: StepOutputs) -> None:
        for session, part in self._open.split(outputs).items():
            session.send(Outputs(part))
        if any(delta.finish_reason is not None for delta in outputs.deltas):
            self._changed.set()

    # --- status, in its own thread

    def _status(self) -> Status:
        return Status(self._client.status(), list(self._last_stats.values()), len(self._open))

    def _report(self) -> None:
        while not self._is_stopped:
            time.sleep(SHORTEST_STATUS_S)
            self._changed.wait(STATUS_S)
            self._changed.clear()
            status = self._status()
            with self._lock:
                sessions = list(self._sessions)
            for session in sessions:
                session.send(status)
