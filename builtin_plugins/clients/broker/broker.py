"""The broker: owns the engines' client, and serves several API servers with it.

So there is one balancer, one ledger of requests and one set of metrics, whichever API server has a
connection. The end of an API server ends its requests and no others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from builtin_plugins.clients.broker.messages import Memory, Observed, Page, ReadPage, Status
from builtin_plugins.clients.broker.sinks import SharedSinks
from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Call,
    Outputs,
    Ready,
    Started,
)
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


@dataclass(slots=True, eq=False)
class OpenGroup:
    """An open request: one sequence or several."""

    session: Session
    request_id: str
    """Id that its API server knows it by."""
    sequences: set[str]
    accepted: Future[Any] | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One API server, as long as its process lives."""

    send: Callable[[Any], None]
    groups: set[OpenGroup] = field(default_factory=set)
    memory: bytes = b""
    """Last report of its memory."""


class EngineBroker:
    """Serves API servers with one client of the engines.

    A session's calls come from one thread each; outputs come from threads of the client.
    """

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        """Start the engines; `wait` until they are ready."""
        self._lock = threading.Lock()
        """Guards sessions and open requests; held for no call of the client."""
        self._sessions: list[Session] = []
        self._groups: dict[str, OpenGroup] = {}
        """Open requests by the id of each sequence."""
        self._by_id: dict[str, OpenGroup] = {}
        """Open requests by the id that their API server knows them by."""
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
            groups = list(session.groups)
            ids = [name for group in groups for name in group.sequences]
            for group in groups:
                self._forget(group)
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
                self._abort(session, message)
            case Call(call, name, data):
                self._call(session, call, name, data)
            case Observed():
                self.sinks.observed(message)
            case Memory(report):
                session.memory = report
            case ReadPage(call, health):
                self._pages.submit(self._page, session, call, health)

    def _add(self, session: Session, message: Add) -> None:
        ids = [request.request_id for request in message.requests]
        name = ids[0] if len(ids) == 1 else ids[0].rpartition("#")[0]
        group = OpenGroup(session, name, set(ids))
        with self._lock:
            is_known = any(each in self._groups for each in ids)
            if not is_known:
                session.groups.add(group)
                self._by_id[name] = group
                self._groups.update(dict.fromkeys(ids, group))
        if is_known:
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
            with self._lock:
                self._forget(group)
        fault = None if error is None else RemoteError.from_exception(error)
        group.session.send(Answer(call, fault))

    def _abort(self, session: Session, message: Abort) -> None:
        with self._lock:
            groups = {self._groups[each] for each in message.request_ids if each in self._groups}
            ids = [name for name in message.request_ids if name in self._groups]
            for group in groups:
                group.sequences.difference_update(ids)
                if not group.sequences:
                    self._forget(group)
            for name in ids:
                self._groups.pop(name, None)
        for group in groups:
            if not group.sequences and group.accepted is not None:
                group.accepted.cancel()  # it may wait until its engine is back
        if ids:
            self._client.abort(ids)
        self._changed.set()

    def _call(self, session: Session, call: int, name: str, data: bytes) -> None:
        if name == OPEN_IDS:
            with self._lock:
                ids = msgspec.json.encode(list(self._by_id))
            session.send(Answer(call, found=[CallAnswer(scheduler=ids)]))
            return
        if name == ABORT:
            self._abort_elsewhere(data.decode())
            session.send(Answer(call))
            return

        def answered(future: Future[list[CallAnswer]]) -> None:
            error = future.exception()
            if error is None:
                session.send(Answer(call, found=future.result()))
            else:
                session.send(Answer(call, RemoteError.from_exception(error)))

        self._client.call(name, data).add_done_callback(answered)

    def _abort_elsewhere(self, request_id: str) -> None:
        """Abort a request; its API server gets the last outputs."""
        with self._lock:
            group = self._by_id.get(request_id)
            ids = [] if group is None else list(group.sequences)
            if group is not None:
                self._forget(group)
        if group is not None:
            self._client.abort(ids)
            deltas = [RequestDelta(request_id=each, finish_reason="abort") for each in ids]
            group.session.send(Outputs(StepOutputs(deltas=deltas)))
            self._changed.set()

    def _page(self, session: Session, call: int, health: bytes) -> None:
        found: dict[str, Any] = msgspec.msgpack.decode(health)
        with self._lock:
            found["open_requests"] = len(self._by_id)
            reports = [each.memory for each in self._sessions if each.memory]
        engine = (found.get("memory") or {}).get("engine") or ()
        found["memory"] = {"engine": [*engine, *reports]}
        try:
            session.send(Page(call, *self.sinks.page(found)))
        except Exception as error:  # noqa: BLE001 - the API server reports it
            session.send(Page(call, b"", "", f"{type(error).__name__}: {error}"))

    # --- the engines, in threads of the client

    def _started(self, request_ids: list[str], engine: int) -> None:
        by_session: dict[Session, list[str]] = {}
        with self._lock:
            for each in request_ids:
                if (group := self._groups.get(each)) is not None:
                    by_session.setdefault(group.session, []).append(each)
        for session, ids in by_session.items():
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
        for session, part in self._split(outputs).items():
            session.send(Outputs(part))

    def _split(self, outputs: StepOutputs) -> Mapping[Session, StepOutputs]:
        """Return the outputs of each session, and forget requests that have ended."""
        parts: dict[Session, StepOutputs] = {}
        counts: Sequence[int] = outputs.counts or [1] * len(outputs.request_ids)
        position = 0
        with self._lock:
            for name, count in zip(outputs.request_ids, counts, strict=True):
                end = position + count
                if (group := self._groups.get(name)) is not None:
                    part = parts.setdefault(group.session, StepOutputs([], [], [], []))
                    part.request_ids.append(name)
                    part.token_ids.extend(outputs.token_ids[position:end])
                    if outputs.counts:
                        part.counts.append(count)
                position = end
            for delta in outputs.deltas:
                group = self._groups.get(delta.request_id)
                if group is None:
                    continue
                part = parts.setdefault(group.session, StepOutputs([], [], [], []))
                part.deltas.append(delta)
                if delta.finish_reason is not None:
                    del self._groups[delta.request_id]
                    group.sequences.discard(delta.request_id)
                    if not group.sequences:
                        self._forget(group)
        return parts

    def _forget(self, group: OpenGroup) -> None:
        """Remove a request; the lock is held."""
        group.session.groups.discard(group)
        if self._by_id.get(group.request_id) is group:
            del self._by_id[group.request_id]
        for each in group.sequences:
            if self._groups.get(each) is group:
                del self._groups[each]
        self._changed.set()

    # --- status, in its own thread

    def _status(self) -> Status:
        with self._lock:
            num_open = len(self._by_id)
        return Status(self._client.status(), list(self._last_stats.values()), num_open)

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
