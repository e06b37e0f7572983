"""Calls to an engine that may restart: their answers, and the resubmission of open requests.

After an engine death, calls wait. Each running request is probed alone for one token before all
resume together. So a request that kills the engine is found without blaming others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from builtin_plugins.clients.process.messages import Abort, Add, Answer, Call
from builtin_plugins.clients.process.request_tracker import DeathCause, OpenRequest, RequestTracker
from builtin_plugins.executors.api import RemoteError
from core.api import EngineDead
from core.api.execution import CallAnswer, EngineRequest, RequestDelta, StepOutputs
from core.api.serving import State

LOST: Final = Answer(
    0,
    RemoteError("EngineDead", "the engine died before it answered; retry the call."),
)
"""Answer to calls that a dead engine has not answered."""

Handler = Callable[[Answer], None]


@dataclass(slots=True)
class EngineCondition:
    """State of the engine process, as its supervisor and its calls share it."""

    state: State = "starting"
    reason: str = ""
    """Cause of a restart or of the end."""

    def is_stopped(self) -> bool:
        """Return whether the engine has ended for good."""
        return self.state == "dead"


class EngineCalls:
    """Sends calls to the engine, or holds them until it is back and has its requests again."""

    def __init__(
        self,
        condition: EngineCondition,
        send: Callable[[Any], None],
        deliver: Callable[[StepOutputs], None],
    ) -> None:
        """`send`: sends a message to the current process. `deliver`: delivers outputs of failed
        requests.
        """
        self.lock: Final = threading.RLock()
        """Guards the calls and the condition."""
        self.requests: Final = RequestTracker()
        self._condition = condition
        self._send_message = send
        self._deliver = deliver
        self._calls: dict[int, Handler] = {}
        self._num_calls = 0
        self._to_probe: deque[str] = deque()
        """Requests to probe alone."""
        self._probing: str | None = None
        """Request that is being probed."""
        self._cleared: list[str] = []
        """Requests to resubmit together after the probes."""
        self._waiting: list[tuple[Future[Any], Callable[[], None]]] = []
        """Calls that wait until every request is resubmitted."""

    def __len__(self) -> int:
        """Return the number of unanswered calls."""
        return len(self._calls)

    @property
    def is_probing(self) -> bool:
        """True while the engine computes one suspected request alone."""
        return self._probing in self.requests

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request; waits during a restart."""
        future: Future[Any] = Future()

        def accepted(answer: Answer) -> None:
            # a lost request is resubmitted with the others
            if answer.fault is None or answer is LOST:
                future.set_result(None)
                return
            for request in requests:
                self.requests.close(request.request_id)
            future.set_exception(answer.fault.error())

        def send() -> None:
            self.requests.open(requests)
            self._send(lambda call: Add(call, list(requests), resumed), accepted)

        self._when_resubmitted(future, send)
        return future

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        future: Future[list[RequestDelta]] = Future()
        with self.lock:
            known = [request_id for request_id in request_ids if self.requests.close(request_id)]
            if known and not self._condition.is_stopped():
                self._send(lambda call: Abort(call, known), lambda answer: None)
            self._next_probe()
        future.set_result(
            [RequestDelta(request_id=request_id, finish_reason="abort") for request_id in known]
        )
        return future

    def call(
        self, name: str, data: bytes = b"", *, only_reads: bool = False
    ) -> Future[list[CallAnswer]]:
        """Call a feature; waits during a restart."""
        future: Future[list[CallAnswer]] = Future()

        def answered(answer: Answer) -> None:
            if answer.fault is None:
                future.set_result(answer.found)
            else:
                future.set_exception(answer.fault.error())

        self._when_resubmitted(
            future, lambda: self._send(lambda call: Call(call, name, data, only_reads), answered)
        )
        return future

    # --- for the supervisor

    def answer(self, answer: Answer) -> None:
        """Handle an answer of the engine."""
        with self.lock:
            self._calls.pop(answer.call)(answer)

    def started(self, request_ids: Iterable[str]) -> None:
        """Note that requests have started."""
        with self.lock:
            self.requests.start(request_ids)

    def record(self, outputs: StepOutputs) -> StepOutputs:
        """Record the outputs of a step; return the part to deliver."""
        with self.lock:
            step = self.requests.record(outputs)
            if step:
                self._check_probe(step)
        return step

    def has_suspects(self) -> bool:
        """Return whether a request may be the cause of the last engine death."""
        with self.lock:
            return self.requests.has_suspects()

    def lose(self, cause: DeathCause) -> list[RequestDelta]:
        """Prepare the resubmission after an engine death; return the outputs of failed requests."""
        with self.lock:
            first, cleared = self.requests.on_engine_death(cause)
            failed = self.requests.failed_requests()
            self._to_probe = deque(first)
            self._probing = None
            self._cleared = cleared
            self._close(LOST)
        return failed

    def resume(self) -> None:
        """Resubmit the requests to a restarted engine."""
        with self.lock:
            self._next_probe()

    def end_answers(self, message: str) -> None:
        """End the requests with tokens by an error."""
        with self.lock:
            if ended := self.requests.begun_answers(message):
                self._deliver(StepOutputs(deltas=ended))

    def release(self, *, suspects: bool = False) -> list[OpenRequest]:
        """Give up the requests to resubmit, for another engine; with `suspects` all others, too."""
        with self.lock:
            movable = [name for name in self._to_probe if suspects or self.requests.may_move(name)]
            self._to_probe = deque(name for name in self._to_probe if name not in movable)
            names = [*self._cleared, *movable]
            self._cleared = []
            return self.requests.release(names)

    def adopt(self, entries: Iterable[OpenRequest]) -> None:
        """Go on with requests of another engine."""
        with self.lock:
            for entry in entries:
                self.requests.adopt(entry)
                self._when_resubmitted(Future(), partial(self._resubmit_unsent, entry))

    def fail_waiting(self) -> None:
        """Fail the waiting calls: the engine has stopped."""
        with self.lock:
            self._release_waiting()

    def close(self, answer: Answer) -> None:
        """Close all calls with an answer, and fail the waiting ones."""
        with self.lock:
            self._close(answer)
            self._release_waiting()

    # --- resubmission of requests, with the lock held

    def _when_resubmitted(self, future: Future[Any], call: Callable[[], None]) -> None:
        """Make a call now, or after all lost requests are resubmitted."""
        with self.lock:
            self._waiting.append((future, call))
            if self._condition.is_stopped() or (
                self._condition.state == "ready" and not self._to_probe and self._probing is None
            ):
                self._release_waiting()

    def _release_waiting(self) -> None:
        """Make the waiting calls that were not cancelled."""
        waiting = self._waiting
        self._waiting = []
        for future, call in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if self._condition.is_stopped():
                future.set_exception(
                    EngineDead(f"the engine has stopped: {self._condition.reason}")
                )
            else:
                call()

    def _check_probe(self, deltas: Iterable[RequestDelta]) -> None:
        """Remove the probed request from the engine once it has enough tokens."""
        name = self._probing
        if name is None or not any(
            d.request_id == name and (d.token_ids or d.finish_reason) for d in deltas
        ):
            return
        if name not in self.requests:  # it has ended
            self._end_probe(name)
        elif name not in self._cleared and not self.requests.is_suspect(name):
            self._cleared.append(name)
            self._send(lambda call: Abort(call, [name]), lambda answer: self._end_probe(name))

    def _end_probe(self, name: str) -> None:
        if self._probing == name:
            self.requests.mark_removed(name)
            self._probing = None
            self._next_probe()

    def _next_probe(self) -> None:
        """Probe the next request; after the last one resubmit all."""
        if self._condition.state != "ready" or self._probing in self.requests:
            return
        self._probing = None
        while self._to_probe and self._probing is None:
            self._probing = self._resubmit(self._to_probe.popleft())
        if self._probing is not None:
            self.requests.start([self._probing])
        else:
            cleared = self._cleared
            self._cleared = []
            for name in cleared:
                self._resubmit(name)
            self._release_waiting()

    def _resubmit_unsent(self, entry: OpenRequest) -> None:
        """Resubmit a request, unless that was done with all others after a restart."""
        if not entry.sent:
            self._resubmit(entry.request.request_id)

    def _resubmit(self, name: str) -> str | None:
        """Resubmit a request with its tokens; return its id, or None if it has ended."""
        request = self.requests.resumed_request(name)
        if request is None:
            return None

        def accepted(answer: Answer) -> None:
            if answer.fault is not None and answer is not LOST and self.requests.close(name):
                failed = RequestDelta(
                    request_id=name, finish_reason="error", error=answer.fault.message
                )
                self._deliver(StepOutputs(deltas=[failed]))
                self._next_probe()

        self._send(lambda call: Add(call, [request], resumed=True), accepted)
        return name

    def _send(self, message: Callable[[int], Any], handler: Handler) -> None:
        self._num_calls += 1
        self._calls[self._num_calls] = handler
        self._send_message(message(self._num_calls))

    def _close(self, answer: Answer) -> None:
        calls = self._calls
        self._calls = {}
        for handler in calls.values():
            handler(answer)
