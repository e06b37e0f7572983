"""The engine loop's body: schedule, submit, collect, update. Knows ids and numbers; no text, no HTTP, no model.

Single-threaded: whoever owns an `EngineCore` calls it from one thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from core.contracts import StepStats
from core.engine.sinks import Sinks
from core.errors import EngineError
from core.step import EngineRequest, RequestDelta, StepPlan, StepResult

if TYPE_CHECKING:
    from core.contracts import Executor
    from core.scheduler import Journal, Scheduler

log = logging.getLogger(__name__)


class EngineCore:
    """Drives one scheduler and one executor."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        sinks: Sinks | None = None,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.sinks = sinks or Sinks()
        self.num_steps = 0
        self.blocked = False
        """True after a step that found nothing to do although requests wait (for a wake-up of an extension)."""
        self._executor = executor
        self._journal = journal
        self._clock = clock
        self._in_flight: list[StepPlan] = []

    @property
    def has_work(self) -> bool:
        """Say whether `step` has anything to do."""
        return bool(self._in_flight) or self.scheduler.has_work

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue the sequences of one request: all of them or, when one is refused, none.

        Raises `InvalidRequest` for a request that could never run, naming the limit.
        """
        added: list[str] = []
        try:
            for request in requests:
                self.scheduler.add(request)
                added.append(request.request_id)
                if self._journal is not None:
                    self._journal.add(self._clock(), request)
        except EngineError:
            self.abort(added)
            raise

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End requests in whatever state they are; ids that are unknown or ended are passed over."""
        deltas = []
        for request_id in request_ids:
            if self._journal is not None:
                self._journal.abort(self._clock(), request_id)
            delta = self.scheduler.abort(request_id)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def step(self) -> list[RequestDelta]:
        """Keep the executor as deep in plans as it allows, then take the oldest result.

        Returns what became known. Empty when nothing could be done (everything waits for a wake-up).
        """
        started = self._clock()
        self._submit_plans()
        self.blocked = not self._in_flight
        if self.blocked:
            return self.scheduler.take_failed()
        try:
            result = self._executor.collect()
        except Exception as error:  # noqa: BLE001 - any fault of a step must end as failed requests, not a dead loop
            return self._fail_in_flight(error)
        plan = self._in_flight.pop(0)
        deltas = self.scheduler.update(result)
        if self._journal is not None:
            self._journal.result(self._clock(), result)
        self.num_steps += 1
        if self.sinks.guarded:
            self.sinks.step(self._stats(plan, result, deltas, self._clock() - started))
        return deltas

    def _submit_plans(self) -> None:
        while len(self._in_flight) < self._executor.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                return
            if self._journal is not None:
                self._journal.plan(self._clock(), plan)
            self._executor.submit(plan)
            self._in_flight.append(plan)

    def _fail_in_flight(self, error: Exception) -> list[RequestDelta]:
        """A step failed as a whole: end the requests it held, keep the others and the loop."""
        log.exception("a step failed; its requests end with an error, the engine goes on")
        for _ in self._in_flight[1:]:
            try:
                self._executor.collect()
            except Exception:
                log.exception("a step in flight behind the failed one failed too")
        self._in_flight.clear()
        message = f"{type(error).__name__}: {error}"
        if self._journal is not None:
            self._journal.fail(self._clock(), message)
        return self.scheduler.fail_in_flight(message)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        if self._journal is not None:
            self._journal.reset_prefix_cache(self._clock())
        return self.scheduler.reset_prefix_cache()

    def _stats(self, plan: StepPlan, result: StepResult, deltas: list[RequestDelta], step_s: float) -> StepStats:
        scheduler = self.scheduler
        prompt = sum(plan.counts) - len(plan.samples)
        new = scheduler.take_counters()
        return StepStats(
            step_s=step_s,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            kv_usage=scheduler.kv_usage,
            prompt_tokens=max(0, prompt),
            generated_tokens=sum(map(len, result.tokens)),
            cached_tokens=new.cached_tokens,
            queried_tokens=new.queried_tokens,
            preemptions=new.preemptions,
            finished=Counter(d.finish_reason for d in deltas if d.finish_reason is not None),
        )

    def shutdown(self) -> None:
        """Release the workers and close the journal; safe to call twice."""
        self._executor.shutdown()
        if self._journal is not None:
            self._journal.close()
