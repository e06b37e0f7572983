"""The engine process: forwards messages of the API process to a thread client, and back.

An engine preserved by the parent outlives the API process and serves the next one: weights and KV
cache stay, and so do resumable requests; others of the dead server end.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from builtin_plugins.clients.binding import bind_to_share
from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Call,
    Outputs,
    Ready,
    Started,
    Stop,
    ToEngine,
)
from builtin_plugins.clients.process.resumable import RequestLedger
from builtin_plugins.clients.process.weights import CALL
from builtin_plugins.clients.rare_collections import rare_collections
from builtin_plugins.executors.api import (
    HEARTBEAT_S,
    TICK_S,
    Connected,
    Heartbeat,
    RemoteError,
    Start,
)
from core.api import EngineDead, Registry
from core.api.execution import CallAnswer, StepOutputs
from core.api.serving import Client, Listener
from core.api.telemetry import StepStats

if TYPE_CHECKING:
    from builtin_plugins.executors.api import ParentChannel

log = logging.getLogger(__name__)


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Run an engine until `Stop`. Raises the error of a failed start or of an engine death."""
    channel.expect(ToEngine)
    bind_to_share(start.config)
    EngineProcess(start, registry, channel).run()


class EngineProcess:
    """Receives calls in the main thread and sends heartbeats in another; the engine runs in the
    client's thread.
    """

    def __init__(self, start: Start, registry: Registry, channel: ParentChannel) -> None:
        self._channel = channel
        self._stats: StepStats | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._open: set[str] = set()
        """Open requests; those that cannot be resumed are aborted when the API process dies."""
        self._ledger = RequestLedger()
        self._weights = ""
        """Identity of the weights."""
        self._cleared: Future[Any] | None = None
        """Done when the requests of a dead server have ended."""
        listener = Listener(
            self._deliver,
            None if start.config.observability.disable_log_stats else self._observe,
            died=self._on_engine_death,
            started=lambda request_ids, engine: channel.send(Started(request_ids)),
            stage=channel.stage,
        )
        self._client: Client = registry.load(
            registry.choose("clients", "thread", {"data_parallel_size": 1})
        )(start.config, registry, listener)

    def run(self) -> None:
        """Serve calls until `Stop` or an engine death."""
        try:
            with rare_collections():
                self._running = self._client.wait()
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
            # objects created so far live as long as the engine; exclude them from collections
            gc.freeze()
            self._weights = _identity(self._client.call(CALL))
            self._channel.stage("serving")
            self._channel.send(
                Ready(self._running.config, self._running.info, weights=self._weights)
            )
            self._listen()
        finally:
            self._ended.set()
            self._client.stop()
        if self._error is not None:
            raise self._error

    def _listen(self) -> None:
        while not self._ended.is_set():
            while not self._channel.input_lines.empty():
                self._switch_server(self._channel.input_lines.get())
            if self._cleared is not None:
                time.sleep(TICK_S)  # not connected
                continue
            message = self._channel.receive(TICK_S)
            if isinstance(message, Stop):
                return
            if message is not None:
                self._take(message)
            with self._ledger.lock:
                expired = self._ledger.expired()
            if expired:
                self._open.difference_update(expired)
                self._client.abort(expired)

    def _switch_server(self, folder: str) -> None:
        """Disconnect from a dead API process, and connect to the next one, which listens in
        `folder`.
        """
        self._channel.close()
        if self._cleared is None:
            log.warning(
                "the API process has died: its requests are aborted but those that can be "
                "resumed, the model stays loaded"
            )
            with self._ledger.lock:
                self._ledger.on_server_death()
                ended = [each for each in self._open if each not in self._ledger]
            self._cleared = self._client.abort(ended)
            self._open.difference_update(ended)
        if not folder:
            return
        try:
            self._channel.reconnect(folder)
        except FileNotFoundError:
            return  # that server has died too
        self._channel.expect(Start)
        while self._channel.receive(TICK_S) is None:
            if self._ended.is_set() or not self._channel.input_lines.empty():
                return  # the engine or the server has died
        self._channel.send(Connected())
        self._channel.expect(ToEngine)
        self._cleared.exception()  # heartbeats continue meanwhile
        self._cleared = None
        with self._ledger.lock:
            unclaimed = self._ledger.unclaimed()
        self._channel.send(
            Ready(self._running.config, self._running.info, unclaimed, self._weights)
        )

    def _take(self, message: Add | Abort | Call) -> None:
        answer: Future[Any]
        if isinstance(message, Add):
            with self._ledger.lock:
                deltas = self._ledger.claim(message.requests)
                if deltas is not None:
                    self._channel.send(Answer(message.call))
                    self._channel.send(Outputs(StepOutputs(deltas=deltas)))
                    return
                self._ledger.open(message.requests)
            self._open.update(request.request_id for request in message.requests)
            answer = self._client.add(message.requests, resumed=message.resumed)
        elif isinstance(message, Abort):
            self._open.difference_update(message.request_ids)
            with self._ledger.lock:
                self._ledger.close(message.request_ids)
            answer = self._client.abort(message.request_ids)
        else:
            answer = self._client.call(message.name, message.data)
            if not message.only_reads:
                identity = self._client.call(CALL)  # the call may update the weights
                identity.add_done_callback(lambda future: self._answer(message, answer, future))
                return
        answer.add_done_callback(lambda future: self._answer(message, future))

    def _answer(
        self,
        message: Add | Abort | Call,
        future: Future[Any],
        identity: Future[list[CallAnswer]] | None = None,
    ) -> None:
        if identity is not None:
            self._weights = _identity(identity) or self._weights
        error = future.exception()
        if isinstance(error, EngineDead):
            return  # the process exit is the answer; the supervisor tracks the requests
        if error is not None and isinstance(message, Add):
            refused = [request.request_id for request in message.requests]
            self._open.difference_update(refused)
            with self._ledger.lock:
                self._ledger.close(refused)
        found = future.result() if isinstance(message, Call) and error is None else []
        self._channel.send(
            Answer(
                message.call,
                None if error is None else RemoteError.from_exception(error),
                found,
                self._weights,
            )
        )
        self._deliver(StepOutputs())  # send the stats of an abort that leaves the engine idle

    def _observe(self, stats: StepStats) -> None:
        self._stats = stats

    def _deliver(self, outputs: StepOutputs) -> None:
        stats = self._stats
        self._stats = None
        for delta in outputs.deltas:
            if delta.finish_reason is not None:
                self._open.discard(delta.request_id)
        with self._ledger.lock:
            outputs = self._ledger.record(outputs)
            if outputs or stats is not None:
                self._channel.send(Outputs(outputs, stats))

    def _on_engine_death(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            status = self._client.status()
            self._channel.send(Heartbeat(status.busy_s, status.heartbeat_age_s))


def _identity(future: Future[list[CallAnswer]]) -> str:
    """Return the identity of all ranks' weights; empty for an engine that has just died."""
    if future.exception() is not None:
        return ""
    return " ".join(rank.decode() for answer in future.result() for rank in answer.ranks)
