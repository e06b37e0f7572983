"""The engine loop's body: schedule, submit, collect, update. Knows ids and numbers; no text, no HTTP, no model.

Single-threaded: whoever owns an `EngineCore` calls it from one thread.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from core.contracts import Executor, StepStats
from core.errors import EngineDead, EngineError, QueueFull
from core.step import EngineRequest, RequestDelta, StepNews, StepPlan

if TYPE_CHECKING:
    from core.scheduler import Journal, Scheduler
    from core.scheduler.journal import Kind

log = logging.getLogger(__name__)


class EngineCore:
    """Drives one scheduler and one executor."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        max_waiting: int | None = None,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.num_steps = 0
        self.observe: Callable[[StepStats], None] | None = None
        """Called after each step with its numbers."""
        self.starting: Callable[[list[str]], None] | None = None
        """Called with the requests a step is the first to compute, before it runs."""
        self.blocked = False
        """True after a step that found nothing to do although requests wait (for a wake-up of an extension)."""
        self.nudge: Callable[[], None] = lambda: None
        """Called, from any thread, when there is something to do again."""
        self._wakes: queue.SimpleQueue[str] = queue.SimpleQueue()
        scheduler.wake_soon = self._wake_soon
        self._executor = executor
        self._max_waiting = max_waiting
        self._journal = journal
        self._clock = clock
        self._in_flight: list[StepPlan] = []
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Say whether `step` has anything to do."""
        return bool(self._in_flight) or self.scheduler.has_work or not self._wakes.empty()

    def add(self, requests: Iterable[EngineRequest], *, resumed: bool = False) -> None:
        """Queue the sequences of one request: all of them or, when one is refused, none.

        Raises `InvalidRequest` for a request that could never run, naming the limit, `QueueFull` when too many wait
        for one more that was not accepted before (`resumed`), and `EngineDead` after `shutdown`.
        """
        if self._closed:
            raise EngineDead("the engine was shut down; make a new one.")
        scheduler, most = self.scheduler, self._max_waiting
        seats = scheduler.limits.max_num_seqs - scheduler.num_running
        if most is not None and not resumed and scheduler.num_waiting >= most + seats:
            raise QueueFull(
                f"all places are taken and no more than {most} may wait (--max-waiting); send it again later."
            )
        added: list[str] = []
        try:
            for request in requests:
                self.scheduler.add(request)
                added.append(request.request_id)
                self._record("add", request)
        except EngineError:
            self.abort(added)
            raise

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End requests in whatever state they are; ids that are unknown or ended are passed over."""
        deltas = []
        for request_id in request_ids:
            self._record("abort", request_id)
            delta = self.scheduler.abort(request_id)
            if delta is not None:
                deltas.append(delta)
        if deltas and not self.has_work and self.observe is not None:
            # No step follows that would say that nothing runs any more.
            self.observe(self._stats())
        return deltas

    def wake(self, request_id: str) -> None:
        """Let a parked request start: what its extension waited for has happened outside of a step."""
        self._record("wake", request_id)
        self.scheduler.wake(request_id)

    def _wake_soon(self, request_id: str) -> None:
        self._wakes.put(request_id)
        self.nudge()

    def await_wake(self, timeout_s: float) -> None:
        """Where nothing but parked requests is left, wait for the first of them."""
        if not self.has_work and self.scheduler.num_parked:
            with suppress(queue.Empty):
                self.wake(self._wakes.get(timeout=timeout_s))

    def release(self, request_id: str) -> None:
        """Give back the blocks of an ended request that an extension kept."""
        self._record("release", request_id)
        self.scheduler.release(request_id)

    def recompute(self, request_id: str, position: int) -> None:
        """Distrust what a request has cached at or after `position`; nothing made of it remains or leaves."""
        self._record("recompute", (request_id, position))
        self.scheduler.recompute(request_id, position)

    def step(self) -> StepNews:
        """Keep the executor as deep in plans as it allows, then take the oldest result.

        Returns what became known. Empty when nothing could be done (everything waits for a wake-up).
        """
        started = self._clock()
        while not self._wakes.empty():
            self.wake(self._wakes.get())
        self._submit_plans()
        self.blocked = not self._in_flight
        if self.blocked:
            return StepNews(deltas=self.scheduler.take_failed())
        try:
            result = self._executor.collect()
        except BaseException as error:  # whatever it was, its requests end, and what is in flight is collected
            if isinstance(error, EngineDead):
                raise  # there is nothing left that could run another step
            failed = self._fail_in_flight(error)
            if isinstance(error, Exception):
                return StepNews(deltas=failed)
            raise  # Ctrl-C; what was in flight is collected, so that the engine can be used again
        plan = self._in_flight.pop(0)
        news = self.scheduler.update(result)
        self._record("result", result)
        self.num_steps += 1
        if self.observe is not None:
            self.observe(self._stats(self._clock() - started, plan))
        return news

    def _submit_plans(self) -> None:
        while len(self._in_flight) < self._executor.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                return
            self._record("plan", plan)
            if plan.new and self.starting is not None:
                self.starting([new.request_id for new in plan.new])
            self._executor.submit(plan)
            self._in_flight.append(plan)

    def _fail_in_flight(self, error: BaseException) -> list[RequestDelta]:
        """A step failed as a whole: end the requests it held, keep the others and the loop."""
        log.exception("a step failed; its requests end with an error, the engine goes on")
        for _ in self._in_flight[1:]:
            try:
                self._executor.collect()
            except Exception:
                log.exception("a step in flight behind the failed one failed too")
        self._in_flight.clear()
        message = f"{type(error).__name__}: {error}"
        self._record("fail", message)
        return self.scheduler.fail_in_flight(message)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        self._record("reset", None)
        return self.scheduler.reset_prefix_cache()

    def _record(self, kind: Kind, data: object) -> None:
        if self._journal is not None:
            self._journal.record(kind, self._clock(), data)

    def _stats(self, step_s: float = 0.0, plan: StepPlan | None = None) -> StepStats:
        """Return the numbers of a step, or how things stand without one; what was counted goes with a step."""
        scheduler = self.scheduler
        stats = StepStats(step_s, scheduler.num_running, scheduler.num_waiting, scheduler.kv_usage)
        if plan is not None:
            new = scheduler.take_counters()
            stats.computed_tokens, stats.cached_tokens = plan.num_tokens, new.cached_tokens
            stats.queried_tokens, stats.preemptions = new.queried_tokens, new.preemptions
        return stats

    def silence_s(self) -> float:
        """Return for how long the most silent of the executor's processes has given no sign of life."""
        return float(getattr(self._executor, "silence_s", float)())

    def shutdown(self) -> None:
        """Release the workers and close the journal; safe to call twice."""
        self._closed = True
        self._executor.shutdown()
        if self._journal is not None:
            self._journal.close()
