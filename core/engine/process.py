"""The engine's own process: an engine core, driven by the messages of the process that serves its clients."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from core.contracts import StepStats
from core.engine.build import build
from core.engine.loop_thread import Listener, LoopThread
from core.engine.messages import Abort, Add, Answer, Fault, Outputs, Ready, ResetCache, Started, Stop, ToEngine
from core.engine.resolve import resolve
from core.errors import EngineDead
from core.process.messages import BEAT_S, Beat, Start
from core.process.spawn import TICK_S
from core.step import StepNews

if TYPE_CHECKING:
    from core.engine.core import EngineCore
    from core.plugin import Registry
    from core.process.child import ParentChannel


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Run an engine until told to stop. Raises what the engine dies of."""
    channel.expect(ToEngine)
    channel.stage("deciding the configuration")
    resolved = resolve(start.config, registry, serving=start.serving)
    built = build(resolved, registry, channel.stage)
    registry.check_combination()
    EngineProcess(built.core, channel, with_stats=not built.config.observability.disable_log_stats).run(
        Ready(built.config, built.info)
    )


class EngineProcess:
    """Steps in the main thread, which has loaded the model, takes calls in another, and beats in a third."""

    def __init__(self, core: EngineCore, channel: ParentChannel, *, with_stats: bool) -> None:
        self._core = core
        self._channel = channel
        self._stats: StepStats | None = None
        self._ended = threading.Event()
        self._loop = LoopThread(
            lambda: core,
            Listener(
                self._deliver,
                self._observe if with_stats else None,
                died=lambda error: None,
                started=lambda request_ids: channel.send(Started(request_ids)),
            ),
        )

    def run(self, ready: Ready) -> None:
        """Serve calls until `Stop`, or until the engine dies."""
        listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        listener.start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        gc.freeze()  # what is here now lives as long as the engine; the collector need not look at it again
        self._channel.stage("serving")
        self._channel.send(ready)
        self._loop.run()
        self._ended.set()
        listener.join()  # sockets must not be closed under it
        if self._loop.error is not None:
            raise self._loop.error

    def _listen(self) -> None:
        try:
            while not self._ended.is_set():
                message = self._channel.receive(TICK_S)
                if isinstance(message, Stop):
                    return
                if message is not None:
                    self._take(message)
        finally:
            self._loop.stop()

    def _take(self, message: Add | Abort | ResetCache) -> None:
        answer: Future[Any]
        if isinstance(message, Add):
            answer = self._loop.add(message.requests, resumed=message.resumed)
        elif isinstance(message, Abort):
            answer = self._loop.abort(message.request_ids)
        else:
            answer = self._loop.reset_prefix_cache()
        answer.add_done_callback(lambda future: self._answer(message.call, future))

    def _answer(self, call: int, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, EngineDead):
            return  # our end is the answer: what was asked is asked of the next engine
        done = error is None and future.result() is not False
        self._channel.send(Answer(call, None if error is None else Fault.of(error), done))
        self._deliver(StepNews())  # an abort that leaves nothing to do has numbers, and no step to bring them

    def _observe(self, stats: StepStats) -> None:
        self._stats = stats

    def _deliver(self, news: StepNews) -> None:
        stats, self._stats = self._stats, None
        if news or stats is not None:
            self._channel.send(Outputs(news, stats))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._channel.send(Beat(self._loop.busy_s, self._core.silence_s()))
