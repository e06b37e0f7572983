"""An engine in a process of its own, restarted when it dies. Every request goes on from the tokens
its client has.

Where a parent keeps the engine it outlives us, and our next life takes it over as it is.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any, Final

import msgspec

from builtin_plugins.clients.process.kept import Home
from builtin_plugins.clients.process.ledger import Death, Ledger
from builtin_plugins.clients.process.leftovers import remove_leftovers
from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Call,
    Outputs,
    Ready,
    Started,
    Stop,
)
from core.api import (
    EngineConfig,
    EngineDead,
    EngineError,
    EngineRequest,
    EngineStatus,
    Listener,
    ProcessFrozen,
    ProcessKilled,
    Registry,
    RequestDelta,
    Running,
    StepNews,
)
from core.contracts.clients import State
from core.process.messages import Beat, Fault, Start
from core.process.spawn import TICK_S, Child

log = logging.getLogger(__name__)

GRACE_S: Final = 3.0
"""For an engine that was asked to end."""
STEADY_S: Final = 60.0
"""Of a life that is no part of a row of deaths, whether or not it was asked for anything."""
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to start an engine that does not stay up."""

LOST: Final = Answer(
    0,
    Fault(
        "EngineDead", "the engine has ended before it answered; what is asked next goes to another."
    ),
)
"""To what an engine has not answered that is dead."""

Handler = Callable[[Answer], None]


class Supervised:
    """Speaks to the engine's process and starts another when it ends, or gives no sign of life.

    After a death, each request that was being computed is tried alone, for a token, before all go
    on together: so one that kills the engine is found, and its neighbours are not blamed.
    """

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        """Start the process; `wait` for it."""
        self._start = Start(
            target="builtin_plugins.clients.process.process:run",
            process="engine",
            plan=registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
        )
        self._limits = config.service
        self._listener = listener
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._calls: dict[int, Handler] = {}
        self._num_calls = 0
        self._returning: deque[str] = deque()
        """Requests to try alone, ..."""
        self._on_trial: str | None = None
        """... the one under way, ..."""
        self._acquitted: list[str] = []
        """... and those to give back after that, all together."""
        self._held: list[tuple[Future[Any], Callable[[], None]]] = []
        """Calls that wait until every request is back."""
        self._state: State = "starting"
        self._reason = ""
        self._home = Home(registry)
        self._restarts = self._home.engine_restarts
        self._deaths_in_a_row = 0
        self._ready_since_s = inf
        self._quiet_s = 0.0
        self._beat = Beat()
        remove_leftovers()
        inherited = self._home.inherit(self._start)
        self._is_inherited = inherited is not None
        """The engine has served an earlier life of ours and does not know us yet."""
        self._child: Child = inherited or self._home.start(self._next_start())
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    def wait(self) -> Running:
        """Wait until the engine takes requests.

        Raises the `EngineError` it could not start for; `stop` it then.
        """
        try:
            ready = self._wait_until_ready()
        except EngineError as error:
            if not self._is_inherited or self._over():
                raise
            log.error("the engine cannot be taken over, and another one is started: %s", error)
            self._child.close()
            self._is_inherited = False
            self._restarts = self._restarts + 1
            self._quiet_s = 0.0
            self._beat = Beat()
            self._child = self._home.start(self._next_start())
            ready = self._wait_until_ready()
        self._state = "ready"
        self._ready_since_s = time.monotonic()
        self._is_inherited = False
        self._quiet_s = 0.0
        self._home.keep(self._child, self._restarts)
        self._thread.start()
        return Running(ready.config, ready.info)

    # --- calls

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request; while the engine restarts, the call waits."""
        future: Future[Any] = Future()

        def accepted(answer: Answer) -> None:
            if answer.fault is None or answer is LOST:  # what is lost comes back with the rest
                future.set_result(None)
                return
            for request in requests:
                self._ledger.close(request.request_id)
            future.set_exception(answer.fault.error())

        def send() -> None:
            self._ledger.open(requests)
            self._send(lambda call: Add(call, list(requests), resumed), accepted)

        self._when_whole(future, send)
        return future

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are."""
        future: Future[list[RequestDelta]] = Future()
        with self._lock:
            known = [request_id for request_id in request_ids if self._ledger.close(request_id)]
            if known and not self._over():
                self._send(lambda call: Abort(call, known), lambda answer: None)
            self._next_trial()
        future.set_result(
            [RequestDelta(request_id=request_id, finish_reason="abort") for request_id in known]
        )
        return future

    def call(self, name: str, data: bytes = b"") -> Future[list[bytes]]:
        """Ask a feature something; while the engine restarts, the call waits."""
        future: Future[list[bytes]] = Future()

        def answered(answer: Answer) -> None:
            if answer.fault is None:
                future.set_result(answer.found)
            else:
                future.set_exception(answer.fault.error())

        self._when_whole(future, lambda: self._send(lambda call: Call(call, name, data), answered))
        return future

    def status(self) -> EngineStatus:
        """Say how the engine is."""
        state = self._state
        age_s = max(self._quiet_s, self._beat.silence_s)
        if state == "ready":
            status = EngineStatus.alive(age_s, self._beat.busy_s, self._restarts)
        else:
            status = EngineStatus(state, self._reason, age_s, self._restarts)
        return dataclasses.replace(status, server_restarts=self._home.our_restarts)

    def stop(self) -> None:
        """Ask the engine to end, and see to it."""
        with self._lock:
            was = self._state
            self._state = "dead"
            self._reason = self._reason or "shut down"
        if was == "ready":
            self._child.channel.send(Stop())
        if self._thread.is_alive():
            self._thread.join()
        self._child.close(GRACE_S if was == "ready" else 0.0)
        with self._lock:
            self._close_calls(
                Answer(0, Fault("EngineDead", f"the engine has stopped: {self._reason}"))
            )
            self._release_held()

    def _over(self) -> bool:
        return self._state == "dead"

    # --- the life of the engine, in a thread of its own

    def _run(self) -> None:
        while not self._over():
            try:
                if self._state == "restarting":
                    self._restart()
                self._follow()
            except EngineError as error:
                if not self._over():
                    self._bury(error)
            except Exception as error:
                log.exception("the supervisor of the engine has failed")
                self._give_up(EngineDead(f"the supervisor of the engine has failed: {error!r}"))

    def _follow(self) -> None:
        """Take what the engine says, until it has ended or the end is wanted.

        Raises what it died of.
        """
        while not self._over():
            message = self._child.receive()
            self._feel(message)
            if isinstance(message, Outputs):
                self._take(message)
            elif isinstance(message, Answer):
                with self._lock:
                    self._calls.pop(message.call)(message)
            elif isinstance(message, Started):
                with self._lock:
                    self._ledger.start(message.request_ids)
                self._listener.started(message.request_ids)

    def _take(self, outputs: Outputs) -> None:
        with self._lock:
            news = self._ledger.take(outputs.news)
            if news:
                self._deaths_in_a_row = 0
                self._judge(news)
        if outputs.stats is not None and self._listener.observe is not None:
            self._listener.observe(outputs.stats)
        if news:
            self._listener.deliver(news)

    def _feel(self, message: Any) -> None:
        """Note a sign of life, or that there was none."""
        self._quiet_s = 0.0 if message is not None else self._quiet_s + TICK_S
        if isinstance(message, Beat):
            self._beat = message
        if message is None or isinstance(message, Beat):
            self._check_pulse()

    def _check_pulse(self) -> None:
        """Kill an engine that is frozen: no sign of life, or a step without an end."""
        silence_s = max(self._quiet_s, self._beat.silence_s)
        most_s = self._limits.heartbeat_timeout
        if silence_s > most_s:
            self._child.kill()
            raise ProcessFrozen(
                f"it gave no sign of life for {most_s:g} s (--heartbeat-timeout) and was killed."
            )
        if self._beat.busy_s > self._limits.step_timeout:
            self._child.kill()
            raise EngineDead(
                f"a step took more than {self._limits.step_timeout:g} s (--step-timeout); it was "
                "killed."
            )

    def _bury(self, error: EngineError) -> None:
        """Find out what goes on in the next life; or give up."""
        with self._lock:
            self._state = "restarting"
            self._reason = str(error)
            is_steady = time.monotonic() - self._ready_since_s > STEADY_S
            self._deaths_in_a_row = 1 if is_steady else self._deaths_in_a_row + 1
            self._ready_since_s = inf
            first, waiting = self._ledger.bury(self._kind_of(error))
            condemned = self._ledger.condemned()
            self._returning = deque(first)
            self._on_trial = None
            self._acquitted = waiting
            self._close_calls(LOST)
        log.error("the engine has died, %d requests are open: %s", len(self._ledger), error)
        if condemned:
            self._listener.deliver(StepNews(deltas=condemned))
        self._child.close()
        self._home.keep(None, self._restarts)
        if self._deaths_in_a_row > self._limits.max_restarts:
            self._give_up(
                EngineDead(
                    f"the engine died {self._deaths_in_a_row} times in a row without a token "
                    "between (--max-restarts "
                    f"{self._limits.max_restarts}); the last time: {error}"
                )
            )
        self._pause()

    def _kind_of(self, death: EngineError) -> Death:
        if not isinstance(death, ProcessKilled):
            return Death.FAULT
        is_unclear = isinstance(death, ProcessFrozen) or self._child.lacked_memory
        return Death.UNCLEAR if is_unclear else Death.KILLED

    def _pause(self) -> None:
        """Wait before another attempt: not at all at first, then ever longer."""
        until_s = time.monotonic() + min(
            LONGEST_PAUSE_S, 0.05 * (2 ** (self._deaths_in_a_row - 1) - 1)
        )
        while time.monotonic() < until_s and not self._over():
            time.sleep(TICK_S / 2)

    def _restart(self) -> None:
        """Start the next life. Raises what it could not start for."""
        with self._lock:
            if self._over():
                return
            self._restarts += 1
            self._quiet_s = 0.0
            self._beat = Beat()
            self._child = self._home.start(self._next_start())
        self._wait_until_ready()
        self._home.keep(self._child, self._restarts)
        with self._lock:
            if self._over():
                return
            self._state = "ready"
            self._reason = ""
            self._ready_since_s = time.monotonic()
            self._quiet_s = 0.0
            self._next_trial()
        log.warning("the engine is back (restart %d)", self._restarts)

    def _next_start(self) -> Start:
        """Each life of the engine writes a journal of its own."""
        config = self._start.config
        if config.scheduler.journal is None or not self._restarts:
            return self._start
        scheduler = dataclasses.replace(
            config.scheduler, journal=f"{config.scheduler.journal}.{self._restarts}"
        )
        return msgspec.structs.replace(
            self._start, config=dataclasses.replace(config, scheduler=scheduler)
        )

    def _wait_until_ready(self) -> Ready:
        while True:
            message = self._child.receive()
            if isinstance(message, Ready):
                return message
            if self._over():
                raise EngineDead("shut down while it was starting")
            if self._is_inherited:
                self._feel(message)  # unlike one that loads, it has to give signs of life

    def _give_up(self, death: EngineDead) -> None:
        with self._lock:
            self._state = "dead"
            self._reason = str(death)
            self._release_held()
        self._child.close()
        self._listener.died(death)

    # --- the way back of requests; with the lock held

    def _when_whole(self, future: Future[Any], call: Callable[[], None]) -> None:
        """Make a call now, or when every request is back that the engine lost."""
        with self._lock:
            self._held.append((future, call))
            if self._over() or (
                self._state == "ready" and not self._returning and self._on_trial is None
            ):
                self._release_held()

    def _release_held(self) -> None:
        """Make the calls that waited, but for those nobody waits for any more."""
        held = self._held
        self._held = []
        for future, call in held:
            if not future.set_running_or_notify_cancel():
                continue
            if self._over():
                future.set_exception(EngineDead(f"the engine has stopped: {self._reason}"))
            else:
                call()

    def _judge(self, deltas: Iterable[RequestDelta]) -> None:
        """Take the request on trial out of the engine again once it has got a token."""
        name = self._on_trial
        if name is None or not any(
            d.request_id == name and (d.token_ids or d.finish_reason) for d in deltas
        ):
            return
        if name not in self._ledger:  # it has ended
            self._end_trial(name)
        elif name not in self._acquitted:
            self._acquitted.append(name)
            self._send(lambda call: Abort(call, [name]), lambda answer: self._end_trial(name))

    def _end_trial(self, name: str) -> None:
        if self._on_trial == name:
            self._ledger.rest(name)
            self._on_trial = None
            self._next_trial()

    def _next_trial(self) -> None:
        """Try the next request alone; after the last one, let everything come back."""
        if self._state != "ready" or self._on_trial in self._ledger:
            return
        self._on_trial = None
        while self._returning and self._on_trial is None:
            self._on_trial = self._give_back(self._returning.popleft())
        if self._on_trial is not None:
            self._ledger.start([self._on_trial])
        else:
            acquitted = self._acquitted
            self._acquitted = []
            for name in acquitted:
                self._give_back(name)
            self._release_held()

    def _give_back(self, name: str) -> str | None:
        """Queue a request again, behind the tokens it has; return its name, or None if it has ended
        meanwhile.
        """
        request = self._ledger.resumption(name)
        if request is None:
            return None

        def accepted(answer: Answer) -> None:
            if answer.fault is not None and answer is not LOST and self._ledger.close(name):
                failed = RequestDelta(
                    request_id=name, finish_reason="error", error=answer.fault.message
                )
                self._listener.deliver(StepNews(deltas=[failed]))
                self._next_trial()

        self._send(lambda call: Add(call, [request], resumed=True), accepted)
        return name

    def _send(self, message: Callable[[int], Any], handler: Handler) -> None:
        self._num_calls += 1
        self._calls[self._num_calls] = handler
        self._child.channel.send(message(self._num_calls))

    def _close_calls(self, answer: Answer) -> None:
        calls = self._calls
        self._calls = {}
        for handler in calls.values():
            handler(answer)
