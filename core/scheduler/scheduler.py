"""Token-budget scheduler. Knows requests, blocks and budget; knows no model,
device or feature.

A step plans tokens, not phases: prefill, prefill chunks, decode and draft verification
differ only in their counts. `planning` and `admission` fill steps, `results` reads
their results, `lifecycle` holds the states of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from core.contracts.scheduling import SchedulingPolicy
from core.errors import EngineError
from core.kv import KVManager
from core.kv.lease import KVTrust
from core.scheduler.extensions import Extensions
from core.scheduler.lifecycle import Counters, Lifecycle
from core.scheduler.limits import SchedulerLimits
from core.scheduler.plan_builder import InFlightStep
from core.scheduler.planning import Planner
from core.scheduler.request import State
from core.scheduler.results import ResultReader
from core.step import EngineRequest, RequestDelta, StepOutputs, StepPlan, StepResult


class Scheduler:
    """Decides what every step computes. Single-threaded; results arrive in plan order."""

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
        """Maximum of plans in flight."""
        self.policy: Final = policy
        self.num_schedules = 0
        """Number of `schedule` calls, those without a plan included."""
        self.call_soon: Callable[..., None] = self._call_now
        """Calls a method by name from any thread: `call_soon("wake",
        request_id)`.

        The engine loop replaces it: the call runs between two steps.
        Methods: `wake`, `loaded`, `release`, `recompute`, `receive_message`.
        """
        deciding = (e for e in extensions if getattr(e, "decides", True))
        self.extension_names: Final = [each.name for each in deciding]
        self._extensions: Final = Extensions(extensions)
        self._life: Final = Lifecycle(limits, kv, policy, self._extensions)
        self._planner: Final = Planner(self._life)
        self._reader: Final = ResultReader(self._life)
        self._in_flight: Final[deque[InFlightStep]] = deque()
        self._extensions.attach(self)

    def _call_now(self, method: str, *arguments: Any) -> None:
        getattr(self, method)(*arguments)

    # --- requests -----------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue one sequence.

        Raises `InvalidRequest`, naming the limit, if it could never end even in an
        empty cache.
        """
        self._life.add(request)

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in any state; None if it is unknown or has ended."""
        request = self._life.live.get(request_id)
        if request is None:
            return None
        self._life.end(request)
        return request.delta(finish_reason="abort")

    def wake(self, request_id: str) -> None:
        """Queue a request that an extension parked; its `may_start` is called again."""
        self._life.wake(request_id)

    def loaded(self, request_id: str) -> None:
        """Publish a request's loaded blocks, and wake it if it is parked."""
        request = self._life.live.get(request_id)
        if request is not None:
            self.kv.mark_verified(request.lease)
            self._life.wake(request_id)

    def receive_message(self, name: str, payload: bytes) -> None:
        """Pass an extension a payload that its worker half sent outside of steps."""
        self._extensions.result({name: [payload]})

    def call(self, name: str, verb: str, data: bytes) -> bytes | None:
        """Call an extension; None if it has no answer. Raises its errors."""
        return self._extensions.call(name, verb, data)

    def call_ended(
        self, name: str, verb: str, data: bytes, ranks: Sequence[bytes] | None
    ) -> bytes | None:
        """Pass on the ranks' answers to a call; None: they raised."""
        return self._extensions.call_ended(name, verb, data, ranks)

    def release(self, request_id: str) -> None:
        """Free blocks that an extension holds, of an ended request or under a pin name."""
        self._life.release(request_id)

    def pin(self, name: str, tables: list[list[int]]) -> None:
        """Hold blocks, per KV group, until `release(name)`; `name` must not be a request id."""
        self._life.pinned[name] = (self.kv.pin(tables), 1)

    def recompute(self, request_id: str, position: int) -> None:
        """Invalidate what a request has cached from `position` on, as after a
        failed load.

        Everything computed from it, by any request, is invalidated or recomputed from
        the last valid position. Tokens of the steps in flight are dropped, and so are
        those of the step just returned if an extension calls this in its `result`;
        delivered tokens stand. Call it from `result` or between other calls, no later
        than in `result` of the last step with the request. Does nothing for an unknown
        request.
        """
        # Ended requests count too: their blocks are still in the prefix cache.
        known = dict.fromkeys(self._life.live.values())
        for step in self._in_flight:
            known.update(dict.fromkeys(step.requests))
        for request in known:
            if request.request_id == request_id:
                self._life.recompute(request, position)

    # --- steps --------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Return the next plan; None without work or with `depth` plans in flight."""
        self.num_schedules += 1
        if len(self._in_flight) >= self.depth:
            return None
        step = self._planner.plan()
        if step is None:
            return None
        self._in_flight.append(step)
        return step.plan

    def update(self, result: StepResult) -> StepOutputs:
        """Read the result of the oldest plan in flight and return its
        outputs.

        Raises `EngineError` for the result of another step: results arrive in plan
        order.
        """
        in_flight = self._in_flight
        if not in_flight or in_flight[0].plan.step != result.step:
            expected = f"step {in_flight[0].plan.step}" if in_flight else "no result"
            raise EngineError(f"step result: got step {result.step}; expected {expected}.")
        if result.payloads:
            # First, since a payload may report that the tokens of this step are
            # invalid.
            self._extensions.result(result.payloads)
        step = in_flight.popleft()
        self._life.batch.returned = result.step
        self.kv.step_returned(result.step)
        outputs = self._reader.read(step, result)
        for request in step.unverified:
            # No extension reported a bad load by now.
            if request.invalid_through_step < result.step and request.row >= 0:
                self.kv.mark_verified(request.lease)
        if self._life.failed:
            outputs.deltas.extend(self.take_failed())
        return outputs

    def fail_in_flight(self, message: str) -> list[RequestDelta]:
        """End every request of the plans in flight, after a step failed as a whole."""
        life = self._life
        requests = {r.request_id: r for step in self._in_flight for r in step.requests}
        self._in_flight.clear()
        life.batch.columns.draft_steps.clear()
        life.batch.returned = life.batch.issued
        self.kv.step_returned(life.batch.issued)
        self.kv.clear_prefix_cache(contents_valid=False)
        for request in life.live.values():
            # its prefix may be from a failed step
            if request.reserved is not None:
                request.external_kv = KVTrust.INVALID
        failed = [
            life.fail(request, message)
            for request in requests.values()
            if request.state is not State.ENDED
        ]
        return [*self.take_failed(), *failed]

    def take_failed(self) -> list[RequestDelta]:
        """Return, once, the requests that failed while planning; `update` includes them."""
        failed = self._life.failed
        self._life.failed = []
        return failed

    # --- state --------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step or a result can make progress; parked requests alone
        cannot.
        """
        life = self._life
        if self._in_flight or life.failed or len(life.queue) or len(life.batch):
            return True
        return life.extensions.pending()

    @property
    def num_running(self) -> int:
        """Number of requests that hold a row."""
        return len(self._life.batch)

    @property
    def num_waiting(self) -> int:
        """Number of requests waiting to start or restart, parked ones
        included.
        """
        return len(self._life.queue) + len(self._life.parked)

    @property
    def num_prefill_tokens(self) -> int:
        """Number of prompt tokens of requests without an output token."""
        live = self._life.live.values()
        return sum(each.prompt_len for each in live if each.num_tokens <= each.prompt_len)

    @property
    def num_parked(self) -> int:
        """Number of requests that an extension holds back."""
        return len(self._life.parked)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions since the start."""
        return self._life.num_preemptions

    def take_counters(self) -> Counters:
        """Return the event counts since the last call."""
        counters = self._life.counters
        self._life.counters = Counters()
        return counters

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache; False, and unchanged, while requests hold
        blocks.

        Blocks that extensions pin stay, and are no longer found.
        """
        if any(request.lease.capacity for request in self._life.live.values()):
            return False
        self.kv.clear_prefix_cache(contents_valid=True)
        return True

    def close(self) -> None:
        """Close the extensions; safe to call twice."""
        self._extensions.close()
