"""The engine's own process: what the process that serves says goes to a client in a thread here,
and back.

Where a parent keeps it, it outlives the process that serves, and goes on for the next one with
empty hands: weights and cache stay, requests of the dead end.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

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
from core.api import Client, EngineDead, Listener, Registry, StepNews, StepStats
from core.process.messages import BEAT_S, Beat, Connected, Fault, Start
from core.process.spawn import TICK_S

if TYPE_CHECKING:
    from core.process.child import ParentChannel

log = logging.getLogger(__name__)


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Run an engine until told to stop. Raises what it cannot start for, or dies of."""
    channel.expect(ToEngine)
    EngineProcess(start, registry, channel).run()


class EngineProcess:
    """Takes calls in the main thread and beats in another; the engine is loaded and steps in the
    client's.
    """

    def __init__(self, start: Start, registry: Registry, channel: ParentChannel) -> None:
        self._channel = channel
        self._stats: StepStats | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._open: set[str] = set()
        """Requests that may run, for whoever comes after somebody who has died."""
        self._cleared: Future[Any] | None = None
        """Done when those of the dead have ended."""
        listener = Listener(
            self._deliver,
            None if start.config.observability.disable_log_stats else self._observe,
            died=self._died,
            started=lambda request_ids: channel.send(Started(request_ids)),
            stage=channel.stage,
        )
        self._client: Client = registry.load(registry.choose("clients", "thread"))(
            start.config, registry, listener
        )

    def run(self) -> None:
        """Serve calls until `Stop`, or until the engine dies."""
        try:
            self._running = self._client.wait()
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
            # what is here now lives as long as the engine; the collector need not look at it again
            gc.freeze()
            self._channel.stage("serving")
            self._channel.send(Ready(self._running.config, self._running.info))
            self._listen()
        finally:
            self._ended.set()
            self._client.stop()
        if self._error is not None:
            raise self._error

    def _listen(self) -> None:
        while not self._ended.is_set():
            while not self._channel.words.empty():
                self._change_sides(self._channel.words.get())
            if self._cleared is not None:
                time.sleep(TICK_S)  # nobody speaks to us
                continue
            message = self._channel.receive(TICK_S)
            if isinstance(message, Stop):
                return
            if message is not None:
                self._take(message)

    def _change_sides(self, folder: str) -> None:
        """Let go of a process that serves and has died; or serve another one, which listens in a
        folder.
        """
        self._channel.close()
        if self._cleared is None:
            log.warning(
                "the process that serves has died: its requests are ended, what is loaded stays"
            )
            self._cleared = self._client.abort(list(self._open))
            self._open.clear()
        if not folder:
            return
        try:
            self._channel.reconnect(folder)
        except FileNotFoundError:
            return  # whoever made it has died as well
        self._channel.expect(Start)
        while self._channel.receive(TICK_S) is None:
            if self._ended.is_set() or not self._channel.words.empty():
                return  # we have died, or it has
        self._channel.send(Connected())
        self._channel.expect(ToEngine)
        self._cleared.exception()  # beats tell meanwhile that we live
        self._cleared = None
        self._channel.send(Ready(self._running.config, self._running.info))

    def _take(self, message: Add | Abort | Call) -> None:
        answer: Future[Any]
        if isinstance(message, Add):
            self._open.update(request.request_id for request in message.requests)
            answer = self._client.add(message.requests, resumed=message.resumed)
        elif isinstance(message, Abort):
            self._open.difference_update(message.request_ids)
            answer = self._client.abort(message.request_ids)
        else:
            answer = self._client.call(message.name, message.data)
        answer.add_done_callback(lambda future: self._answer(message, future))

    def _answer(self, message: Add | Abort | Call, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, EngineDead):
            return  # our end is the answer: who takes requests has them still
        if error is not None and isinstance(message, Add):
            self._open.difference_update(request.request_id for request in message.requests)
        found = future.result() if isinstance(message, Call) and error is None else []
        self._channel.send(Answer(message.call, None if error is None else Fault.of(error), found))
        self._deliver(
            StepNews()
        )  # an abort that leaves nothing to do has numbers, and no step to bring them

    def _observe(self, stats: StepStats) -> None:
        self._stats = stats

    def _deliver(self, news: StepNews) -> None:
        stats = self._stats
        self._stats = None
        for delta in news.deltas:
            if delta.finish_reason is not None:
                self._open.discard(delta.request_id)
        if news or stats is not None:
            self._channel.send(Outputs(news, stats))

    def _died(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            status = self._client.status()
            self._channel.send(Beat(status.busy_s, status.beat_age_s))
