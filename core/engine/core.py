"""The engine loop's body: schedule, submit, collect, update. Knows ids and numbers; no text, no
HTTP, no model.

Single-threaded: whoever owns an `EngineCore` calls it from one thread.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from core.contracts import Executor, StepStats
from core.errors import EngineDead, EngineError, InvalidRequest, PluginError, QueueFull, make_all
from core.step import EngineRequest, RequestDelta, StepNews, StepPlan

if TYPE_CHECKING:
    from core.scheduler import Scheduler
    from core.scheduler.journal import Journal

log = logging.getLogger(__name__)

GATHER_SHARE: Final = 1 / 64
"""Of the time that a prompt will take: for as long those are waited for who come with it."""
GATHER_MOST_S: Final = 0.02


class EngineCore:
    """Drives one scheduler and one executor."""

    def __init__(
        self,
        scheduler: Scheduler | Journal,
        executor: Executor,
        soon: queue.SimpleQueue[tuple[Any, ...]],
        *,
        max_waiting: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`soon`: methods of the scheduler to call, with what they are given; the executor may have
        put some there already.
        """
        self.scheduler = scheduler
        self.num_steps = 0
        self.observe: Callable[[StepStats], None] | None = None
        """Called after each step with its numbers."""
        self.starting: Callable[[list[str]], None] | None = None
        """Called with the requests a step is the first to compute, before it runs."""
        self.blocked = False
        """True after a step that found nothing to do although requests wait (for a wake-up of an
        extension).
        """
        self.nudge: Callable[[], None] = lambda: None
        """Called, from any thread, when there is something to do again."""
        self._soon = soon
        scheduler.soon = self._call_soon
        self.executor = executor
        executor.told = partial(self._call_soon, "tell")
        self._max_waiting = max_waiting
        self._clock = clock
        self._in_flight: list[StepPlan] = []
        self._early: list[StepNews] = []
        """What steps brought that had to be finished before a call."""
        self._token_s = 0.0
        """What the last step that began requests took for each of its tokens."""
        self._gather_s = (0.0, 0.0)
        """By the clock: until when to wait for more requests, and at most."""
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Say whether `step` has anything to do."""
        return (
            bool(self._in_flight or self._early)
            or self.scheduler.has_work
            or not self._soon.empty()
        )

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> None:
        """Queue the sequences of one request: all of them or, when one is refused, none.

        Raises `InvalidRequest` for a request that could never run, naming the limit, `QueueFull`
        when too many wait for one more that was not accepted before (`resumed`), and `EngineDead`
        after `shutdown`.
        """
        if self._closed:
            raise EngineDead("the engine was shut down; make a new one.")
        self.blocked = False
        scheduler = self.scheduler
        most = self._max_waiting
        seats = scheduler.limits.max_num_seqs - scheduler.num_running
        if most is not None and not resumed and scheduler.num_waiting >= most + seats:
            raise QueueFull(
                f"all places are taken and no more than {most} may wait (--max-waiting); send it "
                "again later."
            )
        added: list[str] = []
        try:
            for request in requests:
                self.scheduler.add(request)
                added.append(request.request_id)
        except EngineError:
            self.abort(added)
            raise
        now = self._clock()
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        latest = self._gather_s[1] or now + GATHER_MOST_S
        self._gather_s = min(now + GATHER_SHARE * num_tokens * self._token_s, latest), latest

    def patience_s(self) -> float:
        """Return how long the next step may wait for requests that come with those added since the
        last one.

        Clients ask at once and are heard one after the other; who is in the first's step need not
        wait for its end.
        """
        return max(0.0, self._gather_s[0] - self._clock())

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End requests in whatever state they are; ids that are unknown or ended are passed over."""
        return self._ended(
            [delta for each in request_ids if (delta := self.scheduler.abort(each)) is not None]
        )

    def _ended(self, deltas: list[RequestDelta]) -> list[RequestDelta]:
        """Pass on ends outside of a step's result; where no step follows, say that nothing runs any
        more.
        """
        if deltas and not self.has_work and self.observe is not None:
            self.observe(self._stats())
        return deltas

    def _call_soon(self, method: str, *arguments: Any) -> None:
        self._soon.put((method, *arguments))
        self.nudge()

    def _call_now(self, timeout_s: float | None = None) -> None:
        """Make the calls that came in since the last step; wait `timeout_s` for the first of them."""
        with suppress(queue.Empty):
            while True:
                method, *arguments = self._soon.get(timeout_s is not None, timeout_s)
                getattr(self.scheduler, method)(*arguments)
                timeout_s = None

    def await_wake(self, timeout_s: float) -> None:
        """Where nobody may compute before something happens, wait for that."""
        if self.blocked or (not self.has_work and self.scheduler.num_parked):
            self._call_now(timeout_s)

    def call(self, name: str, data: bytes = b"") -> list[bytes]:
        """Make a call of the engine's parts between two steps; return what they answer.

        `reset_prefix_cache` is the engine's own (b"1", or b"0" and nothing done while blocks are in
        use). Any other is `<feature>.<verb>`: for the feature's scheduler half first, then for its
        worker halves on every rank. Raises what the scheduler half says against it, and
        `InvalidRequest` where nobody answers.
        """
        if name == "reset_prefix_cache":
            return [b"1" if self.scheduler.reset_prefix_cache() else b"0"]
        while self._in_flight:
            self._early.append(self._take_result())
        feature, _, verb = name.partition(".")
        answer = self.scheduler.call(feature, verb, data)
        answers = [*(() if answer is None else (answer,)), *self.executor.call(name, data)]
        if not answers:
            raise InvalidRequest("name", f"no feature that is on answers the call {name!r}.")
        return answers

    def step(self) -> StepNews:
        """Keep the executor as deep in plans as it allows, then take the oldest result.

        Returns what became known. Empty when nothing could be done (everything waits for a
        wake-up).
        """
        if self._early:
            return self._early.pop(0)
        started = self._clock()
        self._gather_s = (0.0, 0.0)
        self._call_now()
        self._submit_plans()
        self.blocked = not self._in_flight
        if self.blocked:
            return StepNews(deltas=self._ended(self.scheduler.take_failed()))
        return self._take_result(started)

    def _take_result(self, started: float | None = None) -> StepNews:
        try:
            result = self.executor.collect()
        except (
            BaseException
        ) as error:  # whatever it was, its requests end, and what is in flight is collected
            if isinstance(error, EngineDead):
                raise  # there is nothing left that could run another step
            failed = self._fail_in_flight(error)
            if isinstance(error, Exception):
                return StepNews(deltas=failed)
            raise  # Ctrl-C; what was in flight is collected, so that the engine can be used again
        plan = self._in_flight.pop(0)
        news = self.scheduler.update(result)
        self.num_steps += 1
        step_s = 0.0 if started is None else self._clock() - started
        if plan.new:
            self._token_s = step_s / plan.num_tokens
        if self.observe is not None:
            self.observe(self._stats(step_s, plan))
        return news

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
        """A step failed as a whole: end the requests it held, keep the others and the loop."""
        log.exception("a step failed; its requests end with an error, the engine goes on")
        for _ in self._in_flight[1:]:
            try:
                self.executor.collect()
            except Exception:
                log.exception("a step in flight behind the failed one failed too")
        self._in_flight.clear()
        message = (
            error.told(None)
            if isinstance(error, PluginError)
            else f"{type(error).__name__}: {error}"
        )
        return self._ended(self.scheduler.fail_in_flight(message))

    def _stats(self, step_s: float = 0.0, plan: StepPlan | None = None) -> StepStats:
        """Return the numbers of a step, or how things stand without one; what was counted goes with
        a step.
        """
        scheduler = self.scheduler
        stats = StepStats(step_s, scheduler.num_running, scheduler.num_waiting, scheduler.kv_usage)
        if plan is not None:
            new = scheduler.take_counters()
            stats.computed_tokens = plan.num_tokens
            stats.cached_tokens = new.cached_tokens
            stats.queried_tokens = new.queried_tokens
            stats.preemptions = new.preemptions
        return stats

    def silence_s(self) -> float:
        """Return for how long the most silent of the executor's processes has given no sign of
        life.
        """
        return float(getattr(self.executor, "silence_s", float)())

    def shutdown(self) -> None:
        """Release the workers, and close what the scheduler writes; safe to call twice."""
        self._closed = True
        make_all((self.executor.shutdown, self.scheduler.close))
