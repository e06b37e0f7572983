"""Token-budget scheduler. Knows requests, blocks and budget; knows no model, no device, no feature.

A step plans tokens, not phases: prefill, chunks, decoding and checking guesses differ only in their
counts. Planning is in `planning`, reading results in `results`, states of requests in `lifecycle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from core.contracts import SchedulingPolicy
from core.errors import EngineError
from core.kv import KVManager
from core.scheduler.extensions import Extensions
from core.scheduler.lifecycle import Counters, Lifecycle
from core.scheduler.limits import SchedulerLimits
from core.scheduler.planning import Flight, Planner
from core.scheduler.request import State
from core.scheduler.results import ResultReader
from core.step import EngineRequest, RequestDelta, StepNews, StepPlan, StepResult


class Scheduler:
    """Decides what every step computes.

    Single-threaded; plans and results go out and come in by step number.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVManager,
        *,
        policy: SchedulingPolicy | None = None,
        extensions: Sequence[Any] = (),
        depth: int = 1,
    ) -> None:
        self.limits: Final = limits
        self.kv: Final = kv
        self.depth: Final = depth
        """Plans that may be in flight at once."""
        self.policy: Final = policy
        self.num_schedules = 0
        """Calls of `schedule`, those that planned nothing included; the journal tells steps apart
        by it.
        """
        self.soon: Callable[..., None] = lambda method, *arguments: getattr(self, method)(
            *arguments
        )
        """Call a method (`wake`, `loaded`, `release`, `recompute`, `tell`) from any thread: whoever
        drives the scheduler
        sets what does it between two steps."""
        self.extension_names: Final[list[str]] = [extension.name for extension in extensions]
        self._extensions: Final = Extensions(extensions)
        self._life: Final = Lifecycle(limits, kv, policy, self._extensions)
        self._planner: Final = Planner(self._life)
        self._reader: Final = ResultReader(self._life)
        self._flights: Final[deque[Flight]] = deque()
        self._extensions.attach(self)

    # --- requests ---------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue one sequence.

        Raises `InvalidRequest`, naming the limit, if it could never end even in an empty cache.
        """
        self._life.add(request)

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in whatever state it is; None if it is unknown or has ended already."""
        request = self._life.live.get(request_id)
        if request is None:
            return None
        self._life.end(request)
        return request.say(finish_reason="abort")

    def wake(self, request_id: str) -> None:
        """Let a request start that an extension parked; it is asked again."""
        self._life.wake(request_id)

    def wake_soon(self, request_id: str) -> None:
        """Likewise, from any thread: what `soon("wake", request_id)` was called before there was
        `soon`.
        """
        self.soon("wake", request_id)

    def loaded(self, request_id: str) -> None:
        """What was brought for a request is known to be right: others may find it, and the request
        starts if it waits.
        """
        if (request := self._life.live.get(request_id)) is not None:
            self.kv.trust(request.lease)
            self._life.wake(request_id)

    def tell(self, name: str, payload: bytes) -> None:
        """Give an extension what its worker half says outside of steps."""
        self._extensions.result({name: [payload]})

    def call(self, name: str, verb: str, data: bytes) -> bytes | None:
        """Make a call of an extension; None where nobody answers. Raises what it says against it."""
        return self._extensions.call(name, verb, data)

    def release(self, request_id: str) -> None:
        """Give back the blocks that an extension kept, of an ended request or under a name of its
        own.
        """
        self._life.release(request_id)

    def keep(self, name: str, tables: list[list[int]]) -> None:
        """Hold blocks, per KV group, beside whoever has them, until `release(name)`; no request is
        called so.
        """
        self._life.kept[name] = self.kv.hold(tables), 1

    def recompute(self, request_id: str, position: int) -> None:
        """Distrust whatever a request has cached at or after `position`, as after a failed load.

        All it and others made of it is forgotten or computed again from what is still trusted, and
        the tokens of steps in flight (in an extension's `result`, of the step just returned too)
        are dropped; delivered ones stand. Call it from `result` or between other calls, at the
        latest in `result` of the last step that names the request; does nothing for one that is
        unknown by then.
        """
        # Not only live ones: what an ended request has left in the cache is as wrong as what it
        # gave to others.
        known = [
            *self._life.live.values(),
            *(r for flight in self._flights for r in flight.requests),
        ]
        for request in dict.fromkeys(r for r in known if r.request_id == request_id):
            self._life.recompute(request, position)

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Return the next step; None if nothing can be computed now or `depth` plans are in flight."""
        self.num_schedules += 1
        if len(self._flights) >= self.depth:
            return None
        flight = self._planner.plan()
        if flight is None:
            return None
        self._flights.append(flight)
        return flight.plan

    def update(self, result: StepResult) -> StepNews:
        """Take the result of the oldest plan in flight and return what became known.

        Raises `EngineError` if it is the result of another step: order is part of the contract.
        """
        if not self._flights or self._flights[0].plan.step != result.step:
            expected = f"that of step {self._flights[0].plan.step}" if self._flights else "none"
            raise EngineError(f"the result of step {result.step} came in, expected was {expected}.")
        if result.payloads:
            # First of all: they may bring the news that the tokens of this very step are wrong.
            self._extensions.result(result.payloads)
        flight = self._flights.popleft()
        self._life.batch.returned = result.step
        self.kv.step_returned(result.step)
        news = self._reader.read(flight, result)
        for request in flight.unsure:
            if (
                request.distrusted < result.step and request.row >= 0
            ):  # nobody has complained by now
                self.kv.trust(request.lease)
        if self._life.failed:
            news.deltas.extend(self.take_failed())
        return news

    def fail_in_flight(self, message: str) -> list[RequestDelta]:
        """A step failed as a whole: end every request that a plan in flight names; the others go
        on.
        """
        requests = {r.request_id: r for flight in self._flights for r in flight.requests}
        self._flights.clear()
        self._life.batch.columns.guessing.clear()
        self._life.batch.returned = self._life.batch.issued
        self.kv.step_returned(self._life.batch.issued)
        self.kv.forget_all(right=False)
        for request in self._life.live.values():
            request.spoiled |= (
                request.reserved is not None
            )  # its first tokens may be those of a failed step
        failed = [
            self._life.fail(r, message) for r in requests.values() if r.state is not State.ENDED
        ]
        return [*self.take_failed(), *failed]

    def take_failed(self) -> list[RequestDelta]:
        """Return, once, the requests that failed while planning (an extension raised); `update`
        includes them.
        """
        failed = self._life.failed
        self._life.failed = []
        return failed

    # --- state ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Say whether scheduling or a result can bring anything. Parked requests alone cannot."""
        life = self._life
        return (
            bool(self._flights or life.failed or len(life.queue) or len(life.batch))
            or life.extensions.pending()
        )

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._life.batch)

    @property
    def num_waiting(self) -> int:
        """Requests that wait to start or to start again, parked ones included."""
        return len(self._life.queue) + len(self._life.parked)

    @property
    def num_parked(self) -> int:
        """Requests that an extension keeps waiting."""
        return len(self._life.parked)

    @property
    def num_preemptions(self) -> int:
        """How often a running request lost its blocks, since the start."""
        return self._life.num_preemptions

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self.kv.usage

    def take_counters(self) -> Counters:
        """Return what was counted since the last call."""
        counters = self._life.counters
        self._life.counters = Counters()
        return counters

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests have blocks.

        Those that extensions keep stay as they are, and are found no more.
        """
        if any(request.lease.capacity for request in self._life.live.values()):
            return False
        self.kv.forget_all(right=True)
        return True

    def close(self) -> None:
        """End what extensions have beside it; safe to call twice."""
        self._extensions.close()

    def check(self) -> None:
        """Assert every invariant that holds between calls; for tests and journals."""
        self._life.check(self._planner.ended_rows)
        assert len(self._flights) <= self.depth, "more plans in flight than the depth"
