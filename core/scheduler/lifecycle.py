"""Every request between `add` and its end, and the resources it holds.

Only this module starts, stops and ends requests. However a request ends, its queue
entry, row and blocks are released here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.contracts.scheduling import SchedulingPolicy
from core.errors import InvalidRequest
from core.kv import KVManager, Lease
from core.kv.lease import KVTrust
from core.scheduler.batch import RunningBatch
from core.scheduler.extensions import Extensions
from core.scheduler.limits import SchedulerLimits
from core.scheduler.request import Rank, Request, State, WaitingQueue
from core.step import EngineRequest, RequestDelta

_BEFORE_ALL: Final = 1 << 62


@dataclass(slots=True)
class Counters:
    """Event counts since the last `take_counters`."""

    cached_tokens: int = 0
    queried_tokens: int = 0
    preemptions: int = 0


class Lifecycle:
    """State transitions of requests; each method leaves a
    consistent state.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVManager,
        policy: SchedulingPolicy | None,
        extensions: Extensions,
    ) -> None:
        self.limits: Final = limits
        self.kv: Final = kv
        self.extensions: Final = extensions
        self.queue: Final = WaitingQueue()
        rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self.batch: Final = RunningBatch(rows, limits.max_model_len)
        self.live: Final[dict[str, Request]] = {}
        """All requests that have not ended."""
        self.parked: Final[dict[str, Request]] = {}
        """Requests that an extension holds back."""
        self.pinned: Final[dict[str, tuple[Lease, int]]] = {}
        """(blocks, number of extensions that use them), by ended request or pin name."""
        self.failed: list[RequestDelta] = []
        """Requests that failed while planning; the next update returns them."""
        self.invalid_through_step = 0
        """Last step that contains invalid tokens of any request."""
        self.counters = Counters()
        self.num_preemptions = 0
        self._policy = policy
        max_len = limits.max_model_len
        self._longest = kv.capacity.longest_sequence(max_len, limits.max_step_tokens)
        self._arrivals = 0

    def add(self, source: EngineRequest) -> Request:
        """Queue a request. Raises `InvalidRequest`, and holds nothing of a rejected one."""
        if source.request_id in self.live or source.request_id in self.pinned:
            raise InvalidRequest("request_id", f"{source.request_id!r} is in use; choose another.")
        self.limits.check(source, self._longest)
        lease = self.kv.open_lease(
            source.cache_salt, source.cache_domains, source.spans, source.num_encoder_positions
        )
        max_len = self.limits.max_model_len
        request = Request(source, self._arrivals, max_len, lease, self.batch.columns)
        self._arrivals += 1
        request.rank = self._rank(request)
        self.extensions.arrived(request)
        self.live[request.request_id] = request
        self.queue.add(request)
        return request

    def _rank(self, request: Request) -> Rank:
        key = () if self._policy is None else self._policy.key(request.queued_view())
        return key, request.arrival

    def park(self, request: Request) -> None:
        """Take a waiting request out of the queue until `wake`."""
        self.queue.remove(request)
        request.state = State.PARKED
        self.parked[request.request_id] = request

    def wake(self, request_id: str) -> None:
        """Queue a parked request again; does nothing for any other."""
        request = self.parked.pop(request_id, None)
        if request is None:
            return
        request.state = State.WAITING
        if request.reserved is not None:
            # It goes first: requests that need its reserved blocks would deadlock with
            # it.
            request.rank = (), request.arrival - _BEFORE_ALL
        self.queue.add(request)

    def release_reservation(self, request: Request) -> None:
        """Free the reserved blocks of a waiting request, which returns to its own rank."""
        self.queue.remove(request)
        self.kv.close_lease(request.lease)
        request.reserved = None
        request.rank = self._rank(request)
        self.queue.add(request)

    def start(self, request: Request) -> None:
        """Give the head of the queue, which has its blocks, a row."""
        self.queue.remove(request)
        if request.rank[1] != request.arrival:
            request.rank = self._rank(request)
        request.reserved = None
        request.external_kv = KVTrust.VERIFIED
        self.batch.enter(request)

    def recompute(self, request: Request, position: int) -> None:
        """Compute again what a request has cached from `position` on, and all
        that depends on it.

        The request may be live or ended.
        """
        if request.row >= 0 and request.planned <= position:
            return
        request.skips_tiers = True
        computed = request.tokens[: request.planned]
        self.kv.invalidate(request.lease, computed, position)
        live = self.live.values()
        shares = self.kv.shares_blocks
        for other in [r for r in live if shares(request.lease, r.lease, position)]:
            if other.reserved is not None:
                if other is request or position < other.reserved:
                    other.external_kv = KVTrust.INVALID
                continue
            if other.row >= 0:
                if other.planned <= position:
                    continue
                self.preempt(other, publish=False)
            self.invalid_through_step = self.batch.issued
            other.invalid_through_step = self.batch.issued

    def preempt(self, request: Request, *, publish: bool = True) -> None:
        """Take row and blocks from a running request, which waits to be
        recomputed.

        `publish`: its computed blocks enter the prefix cache, where it may find them
        again.
        """
        self.batch.leave(request)
        if publish:
            self._publish_computed(request)
        self.kv.close_lease(request.lease)
        request.computed = 0
        request.num_preemptions += 1
        self.counters.preemptions += 1
        self.num_preemptions += 1
        request.state = State.WAITING
        request.rank = self._rank(request)
        self.queue.add(request)

    def _publish_computed(self, request: Request) -> None:
        end = min(request.planned, request.num_tokens)
        self.kv.publish(request.lease, request.tokens, end)

    def end(self, request: Request, *, forget: bool = False) -> None:
        """End a live request in any state.

        `forget`: its computed blocks must not be found by others.
        """
        if request.state is State.WAITING:
            self.queue.remove(request)
        elif request.state is State.PARKED:
            del self.parked[request.request_id]
        else:
            self.batch.leave(request)
        request.state = State.ENDED
        del self.live[request.request_id]
        if forget:
            request.lease.num_published = 0
        else:
            self._publish_computed(request)
        num_users = 0
        try:
            num_users = self.extensions.finished(request)
        finally:
            if num_users:
                self.pinned[request.request_id] = (request.lease, num_users)
            else:
                self.kv.close_lease(request.lease, forget=forget)

    def fail(self, request: Request, message: str) -> RequestDelta:
        """End a single live request with an error."""
        self.end(request, forget=True)
        return request.delta(finish_reason="error", error=message)

    def release(self, name: str) -> None:
        """Unpin the blocks of an ended request or pin name, for one
        extension.

        The last one frees them. Does nothing for other names.
        """
        lease, num_users = self.pinned.pop(name, (None, 0))
        if lease is None:
            return
        if num_users > 1:
            self.pinned[name] = (lease, num_users - 1)
        else:
            self.kv.close_lease(lease)
