"""Client of an engine in its own process, which is restarted when it dies; open requests resume.

An engine preserved by the parent outlives the API process; the next API process takes it over.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any, Final

from builtin_plugins.clients.process.engine_calls import EngineCalls, EngineCondition
from builtin_plugins.clients.process.host import EngineHost, next_start, remove_leftovers
from builtin_plugins.clients.process.messages import (
    Answer,
    Outputs,
    Ready,
    Started,
    Stop,
)
from builtin_plugins.clients.process.request_tracker import DeathCause, OpenRequest
from builtin_plugins.clients.process.start_log import StartLog
from builtin_plugins.clients.process.watchdog import Watchdog
from builtin_plugins.clients.process.weights import OTHER_WEIGHTS, KnownWeights
from builtin_plugins.clients.reading_calls import reading_calls
from builtin_plugins.executors.api import TICK_S, RemoteError, Start
from builtin_plugins.launchers.api import ChildProcess
from core.api import EngineConfig, EngineDead, EngineError, Registry
from core.api.execution import (
    CallAnswer,
    EngineRequest,
    ProcessFrozen,
    ProcessKilled,
    RequestDelta,
    StepOutputs,
)
from core.api.serving import EngineStatus, Listener, Running
from core.api.telemetry import StepStats

log = logging.getLogger(__name__)

GRACE_S: Final = 3.0
"""Seconds for an engine to end after `Stop`."""
STABLE_S: Final = 60.0
"""Uptime in seconds after which the crash counter resets."""
LONGEST_PAUSE_S: Final = 5.0
"""Maximum pause in seconds between two starts of a crashing engine."""


class Supervised:
    """Talks to the engine process and restarts it when it exits or freezes."""

    def __init__(
        self,
        config: EngineConfig,
        registry: Registry,
        listener: Listener,
        *,
        name: str = "engine",
        rank: int = 0,
        on_loss: Callable[[EngineCalls], None] = lambda calls: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process; `wait` until it is ready.

        `name` is that of the process, `rank` the engine's among several. `on_loss` is called with
        the requests of a dead engine, before it is restarted; it may take them elsewhere.
        `environment` has variables of the process in addition to those of this one.
        """
        self._start = Start(
            target="builtin_plugins.clients.process.process:run",
            process=name,
            rank=rank,
            plan=registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
        )
        self._limits = config.service
        self._listener = listener
        self._condition = EngineCondition()
        self._calls = EngineCalls(
            self._condition, lambda message: self.child.send(message), listener.deliver
        )
        self._lock = self._calls.lock
        self._requests = self._calls.requests
        self._watchdog = Watchdog(config)
        self._on_loss = on_loss
        self._weights = KnownWeights()
        self._reading = reading_calls(registry)
        self.unclaimed: list[str] = []
        """Resumable requests of the previous API process, if the engine was taken over."""
        self._host = EngineHost(config, registry, name, environment)
        self._restarts = self._host.engine_restarts
        self._crash_count = 0
        self._ready_since_s = inf
        remove_leftovers()
        taken_over = self._host.take_over(self._start)
        self._is_taken_over = taken_over is not None
        """Whether the engine was taken over and has not connected yet."""
        self.child: ChildProcess = taken_over or self._host.start(
            next_start(self._start, self._restarts)
        )
        """The engine's process."""
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    def wait(self) -> Running:
        """Wait until the engine is ready.

        Raises the `EngineError` of a failed start; call `stop` then.
        """
        try:
            ready = self._wait_until_ready()
        except EngineError as error:
            if not self._is_taken_over or self._condition.is_stopped():
                raise
            log.error("cannot take over the running engine, starting a new one: %s", error)
            self.child.close()
            self._is_taken_over = False
            self._restarts = self._restarts + 1
            self._watchdog.reset()
            self.child = self._host.start(next_start(self._start, self._restarts))
            ready = self._wait_until_ready()
        self.unclaimed = ready.unclaimed
        self._condition.state = "ready"
        self._ready_since_s = time.monotonic()
        self._is_taken_over = False
        self._watchdog.on_ready()
        self._host.keep(self.child, self._restarts)
        self._thread.start()
        return Running(ready.config, ready.info)

    # --- calls

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request; waits during a restart."""
        return self._calls.add(requests, resumed=resumed)

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        return self._calls.abort(request_ids)

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature; waits during a restart."""
        return self._calls.call(name, data, only_reads=name in self._reading)

    def release(self, *, suspects: bool = False) -> list[OpenRequest]:
        """Give up open requests of a dead engine, for another one."""
        return self._calls.release(suspects=suspects)

    def adopt(self, entries: Sequence[OpenRequest]) -> None:
        """Go on with requests of another engine."""
        self._calls.adopt(entries)

    def status(self) -> EngineStatus:
        """Return the engine's status."""
        state = self._condition.state
        age_s = self._watchdog.silence_s
        if state == "ready":
            status = EngineStatus.alive(age_s, self._watchdog.busy_s, self._restarts)
        else:
            status = EngineStatus(state, self._condition.reason, age_s, self._restarts)
        return dataclasses.replace(status, server_restarts=self._host.server_restarts)

    def stop(self) -> None:
        """Stop the engine and wait for its end."""
        with self._lock:
            previous_state = self._condition.state
            self._condition.state = "dead"
            self._condition.reason = self._condition.reason or "shut down"
        if previous_state == "ready":
            self.child.send(Stop())
        if self._thread.is_alive():
            self._thread.join()
        self.child.close(GRACE_S if previous_state == "ready" else 0.0)
        self._host.close()
        text = f"the engine has stopped: {self._condition.reason}"
        self._calls.close(Answer(0, RemoteError("EngineDead", text)))

    # --- supervision, in its own thread

    def _run(self) -> None:
        while not self._condition.is_stopped():
            try:
                if self._condition.state == "restarting":
                    self._restart()
                self._follow()
            except EngineError as error:
                if not self._condition.is_stopped():
                    self._on_engine_death(error)
            except Exception as error:
                log.exception("the engine supervisor has failed")
                self._give_up(EngineDead(f"the engine supervisor has failed: {error!r}"))

    def _follow(self) -> None:
        """Process messages of the engine until shutdown.

        Raises the error that the engine died of.
        """
        while not self._condition.is_stopped():
            message = self.child.receive()
            self._watchdog.note(message, self.child)
            if isinstance(message, Outputs):
                self._deliver(message)
            elif isinstance(message, Answer):
                self._weights.note(message.weights)
                self._calls.answer(message)
            elif isinstance(message, Started):
                self._calls.started(message.request_ids)
                self._listener.started(message.request_ids, self._start.rank)

    def _deliver(self, outputs: Outputs) -> None:
        step = self._calls.record(outputs.step)
        if step and not self._calls.has_suspects():  # a neighbor's tokens clear no suspect
            self._crash_count = 0
        if outputs.stats is not None and self._listener.observe is not None:
            self._listener.observe(outputs.stats)
        if step:
            self._listener.deliver(step)

    def _on_engine_death(self, error: EngineError) -> None:
        """Prepare the restart after an engine death, or give up."""
        with self._lock:
            self._condition.state = "restarting"
            self._condition.reason = str(error)
            is_steady = time.monotonic() - self._ready_since_s > STABLE_S
            # A death in a probe counts against the probed request, which fails after a few.
            self._crash_count = 1 if is_steady else self._crash_count + (not self._calls.is_probing)
            self._ready_since_s = inf
            failed = self._calls.lose(_cause_of(error, self.child))
            if failed:
                self._crash_count = 0  # the cause is found
        log.error("the engine has died, %d requests are open: %s", len(self._requests), error)
        if self._listener.observe is not None:
            self._listener.observe(StepStats(0.0, 0, 0, 0.0))  # a dead engine runs nothing
        if failed:
            self._listener.deliver(StepOutputs(deltas=failed))
        if not self._weights.is_updated:  # other engines have the same weights
            self._on_loss(self._calls)
        self.child.close()
        self._host.keep(None, self._restarts)
        if self._crash_count > self._limits.max_restarts:
            text = (
                f"the engine died {self._crash_count} times in a row without a token in between "
                f"(--max-restarts {self._limits.max_restarts}); last error: {error}"
            )
            self._give_up(EngineDead(text))
        self._pause()

    def _pause(self) -> None:
        """Wait before the next start: exponential backoff from zero."""
        until_s = time.monotonic() + min(LONGEST_PAUSE_S, 0.05 * (2 ** (self._crash_count - 1) - 1))
        while time.monotonic() < until_s and not self._condition.is_stopped():
            time.sleep(TICK_S / 2)

    def _restart(self) -> None:
        """Start the engine again. Raises the error of a failed start."""
        with self._lock:
            if self._condition.is_stopped():
                return
            self._restarts += 1
            self._watchdog.reset()
            try:
                self.child = self._host.start(next_start(self._start, self._restarts))
            except OSError as error:  # a full disk, too many open files: it may pass
                raise EngineDead(f"the engine process cannot be started: {error}") from error
        self._wait_until_ready()
        self._host.keep(self.child, self._restarts)
        with self._lock:
            if self._condition.is_stopped():
                return
            self._condition.state = "ready"
            self._condition.reason = ""
            self._ready_since_s = time.monotonic()
            self._watchdog.on_ready()
            self._calls.resume()
        log.warning("the engine is back (restart %d)", self._restarts)

    def _wait_until_ready(self) -> Ready:
        start_log = StartLog()
        while True:
            message = self.child.receive()
            if isinstance(message, Ready):
                if self._weights.note(message.weights):
                    self._calls.end_answers(OTHER_WEIGHTS)
                return message
            start_log.note(self.child)
            if self._condition.is_stopped():
                raise EngineDead("shut down while it was starting")
            if self._is_taken_over:
                # unlike a loading engine, it must send heartbeats
                self._watchdog.note(message, self.child)

    def _give_up(self, error: EngineDead) -> None:
        if self._weights.is_updated:
            self._calls.end_answers(OTHER_WEIGHTS)
        with self._lock:
            self._condition.state = "dead"
            self._condition.reason = str(error)
            self._calls.fail_waiting()
        self.child.close()
        self._listener.died(error)


def _cause_of(error: EngineError, child: ChildProcess) -> DeathCause:
    if not isinstance(error, ProcessKilled):
        return DeathCause.FAULT
    is_unclear = isinstance(error, ProcessFrozen) or child.may_be_oom
    return DeathCause.UNCLEAR if is_unclear else DeathCause.KILLED
