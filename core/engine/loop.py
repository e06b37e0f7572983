"""The engine loop: schedule, submit, collect, update. Knows ids and numbers;
no text, no model.

Single-threaded: one thread calls all methods of an `EngineCore`.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from core.contracts.telemetry import StepStats
from core.contracts.workers import Executor
from core.engine.queue_limits import NO_LIMITS, QueueLimits
from core.errors import EngineDead, EngineError, InvalidRequest, PluginError, run_all
from core.scheduler.dump import describe
from core.step import CallAnswer, EngineRequest, RequestDelta, StepOutputs, StepPlan

if TYPE_CHECKING:
    from core.scheduler import Scheduler

log = logging.getLogger(__name__)

BATCHING_SHARE: Final = 1 / 64
"""Batching window, as a share of the estimated prefill time of the requests in it."""
MAX_BATCHING_S: Final = 0.02
"""Maximum batching window, in seconds."""


class EngineCore:
    """Drives one scheduler and one executor."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        pending_calls: queue.Queue[tuple[Any, ...]],
        *,
        queue_limits: QueueLimits = NO_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pending_calls` are scheduler methods to call with their arguments.

        The executor may have queued some already.
        """
        self.scheduler = scheduler
        self.num_steps = 0
        self.observe: Callable[[StepStats], None] | None = None
        """Receives the statistics of each step."""
        self.starting: Callable[[list[str]], None] | None = None
        """Receives the ids of requests that the next step computes for the first time."""
        self.blocked = False
        """True after a step that found nothing to do while requests wait for a wake-up."""
        self.notify: Callable[[], None] = lambda: None
        """Called from any thread when there is something to do again."""
        self._pending_calls = pending_calls
        scheduler.call_soon = self._call_soon
        self.executor = executor
        executor.on_message = partial(self._call_soon, "receive_message")
        self._queue_limits = queue_limits
        self._clock = clock
        self._in_flight: list[StepPlan] = []
        self._completed_outputs: list[StepOutputs] = []
        """Outputs of steps that were collected early, before a call."""
        self._token_s = 0.0
        """Seconds per token of the last step with new requests."""
        self._batching_until_s = 0.0
        """End of the batching window, in clock time."""
        self._batching_limit_s = 0.0
        """Latest end of the batching window; 0 without one."""
        self._kv_usage = 0.0
        """KV usage that was reported last."""
        self._closed = False

    @property
    def has_work(self) -> bool:
        """True while `step` has something to do."""
        computes = self._in_flight or self._completed_outputs or self.scheduler.has_work
        return bool(computes) or not self._pending_calls.empty()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> None:
        """Queue all sequences of one request; if one is refused, none.

        Raises `InvalidRequest` with the limit for a request that could never run, `QueueFull` for a
        full queue (unless `resumed`: accepted before), `EngineDead` after `shutdown`.
        """
        if self._closed:
            raise EngineDead("the engine was shut down; make a new one.")
        self.blocked = False
        if not resumed:
            self._queue_limits.check(self.scheduler, len(requests))
        added: list[str] = []
        try:
            for request in requests:
                self.scheduler.add(request)
                added.append(request.request_id)
        except EngineError:
            self.abort(added)
            raise
        now_s = self._clock()
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        window_s = BATCHING_SHARE * num_tokens * self._token_s
        self._batching_limit_s = self._batching_limit_s or now_s + MAX_BATCHING_S
        self._batching_until_s = min(now_s + window_s, self._batching_limit_s)

    def batching_window_s(self) -> float:
        """Return how long a step may wait for more requests, in s.

        Concurrent clients arrive one after the other; batched into one step, none of them waits for
        the end of another's first step.
        """
        return max(0.0, self._batching_until_s - self._clock())

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """Abort requests in any state; unknown and finished ids are ignored."""
        deltas = (self.scheduler.abort(request_id) for request_id in request_ids)
        return self._ended([delta for delta in deltas if delta is not None])

    def _ended(self, deltas: list[RequestDelta]) -> list[RequestDelta]:
        """Return ends outside of a step; if no step follows, report what is still in use."""
        has_changed = deltas or self.scheduler.kv.usage != self._kv_usage  # by a tier
        if self.observe is not None and has_changed and not self.has_work:
            self.observe(self._stats())
        return deltas

    def _call_soon(self, method: str, *arguments: Any) -> None:
        self._pending_calls.put((method, *arguments))
        self.notify()

    def _run_pending_calls(self, timeout_s: float | None = None) -> None:
        """Run the scheduler calls since the last step; wait `timeout_s` for the first one."""
        with suppress(queue.Empty):
            while True:
                method, *arguments = self._pending_calls.get(timeout_s is not None, timeout_s)
                getattr(self.scheduler, method)(*arguments)
                timeout_s = None

    def await_wake(self, timeout_s: float) -> None:
        """If nothing can be computed before a wake-up, wait for one."""
        if self.blocked or (not self.has_work and self.scheduler.num_parked):
            self._run_pending_calls(timeout_s)

    def call(self, name: str, data: bytes = b"") -> CallAnswer:
        """Call a part of the engine between two steps; return its answer.

        `reset_prefix_cache` is the engine's own: b"1", or b"0" without an effect while blocks are
        in use. Others are `<feature>.<verb>`: the scheduler half, the ranks, then `call_ended`.
        Raises their errors, `InvalidRequest` without any answer.
        """
        if name == "reset_prefix_cache":
            return CallAnswer(scheduler=b"1" if self.scheduler.reset_prefix_cache() else b"0")
        while self._in_flight:
            self._completed_outputs.append(self._collect())
        feature, _, verb = name.partition(".")
        answer = self.scheduler.call(feature, verb, data)
        try:
            ranks = self.executor.call(name, data)
        except EngineError:
            self.scheduler.call_ended(feature, verb, data, None)
            raise
        answer = self.scheduler.call_ended(feature, verb, data, ranks) or answer
        if answer is None and not ranks:
            raise InvalidRequest("name", f"no feature that is on answers the call {name!r}.")
        return CallAnswer(scheduler=answer, ranks=ranks)

    def step(self) -> StepOutputs:
        """Submit as many plans as the executor's depth allows, then collect the oldest result.

        Empty when nothing can be done until a wake-up.
        """
        if self._completed_outputs:
            return self._completed_outputs.pop(0)
        started_s = self._clock()
        self._batching_until_s = 0.0
        self._batching_limit_s = 0.0
        if not self._pending_calls.empty():
            self._run_pending_calls()
        self._submit_plans()
        self.blocked = not self._in_flight
        if self.blocked:
            getattr(self.executor, "check_health", bool)()
            return StepOutputs(deltas=self._ended(self.scheduler.take_failed()))
        return self._collect(started_s)

    def _collect(self, started_s: float | None = None) -> StepOutputs:
        try:
            result = self.executor.collect()
        except BaseException as error:
            if isinstance(error, EngineDead):
                raise  # no executor is left to run another step
            failed = self._fail_in_flight(error)
            if isinstance(error, Exception):
                return StepOutputs(deltas=failed)
            raise  # Ctrl-C: with all steps collected, the engine stays usable
        plan = self._in_flight.pop(0)
        outputs = self.scheduler.update(result)
        self.num_steps += 1
        step_s = 0.0 if started_s is None else self._clock() - started_s
        if plan.new:
            self._token_s = step_s / plan.num_tokens
        if self.observe is not None:
            self.observe(self._stats(step_s, plan))
        return outputs

    def _submit_plans(self) -> None:
        while len(self._in_flight) < self.executor.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                return
            if plan.new and self.starting is not None:
                self.starting([new.request_id for new in plan.new])
            self.executor.submit(plan)
            self._in_flight.append(plan)

    def _fail_in_flight(self, error: BaseException) -> list[RequestDelta]:
        """A whole step failed: end the requests in flight; others and the loop continue."""
        state = describe(self.scheduler)
        log.exception("a step and its requests failed; %s", state)
        for _ in self._in_flight[1:]:
            try:
                self.executor.collect()
            except Exception:
                log.exception("a step in flight after the failed one failed too")
        self._in_flight.clear()
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, PluginError):
            message = error.client_message(None)
        return self._ended(self.scheduler.fail_in_flight(message))

    def _stats(self, step_s: float = 0.0, plan: StepPlan | None = None) -> StepStats:
        """Return the statistics of a step; without a plan, the current state only."""
        scheduler = self.scheduler
        usage = self._kv_usage = scheduler.kv.usage
        stats = StepStats(step_s, scheduler.num_running, scheduler.num_waiting, usage)
        if plan is not None:
            counters = scheduler.take_counters()
            stats.computed_tokens = plan.num_tokens
            stats.cached_tokens = counters.cached_tokens
            stats.queried_tokens = counters.queried_tokens
            stats.preemptions = counters.preemptions
        return stats

    def silence_s(self) -> float:
        """Return the seconds since the last heartbeat of the executor's slowest process."""
        return float(getattr(self.executor, "silence_s", float)())

    def shutdown(self) -> None:
        """Release the workers and close the scheduler; may be called twice."""
        self._closed = True
        run_all((self.executor.shutdown, self.scheduler.close))
