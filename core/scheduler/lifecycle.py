"""Every request between `add` and its end, and what it holds. The only place that starts, stops and
ends one.

A request is a cancellation scope: whichever way it ends, queue place, row and blocks go back here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.contracts import SchedulingPolicy
from core.errors import InvalidRequest
from core.kv import KVManager, Lease
from core.scheduler.batch import Batch
from core.scheduler.extensions import Extensions
from core.scheduler.limits import SchedulerLimits
from core.scheduler.queue import WaitingQueue
from core.scheduler.request import Rank, Request, State
from core.step import EngineRequest, RequestDelta

_BEFORE_ALL: Final = 1 << 62


@dataclass(slots=True)
class Counters:
    """Events since they were last taken."""

    cached_tokens: int = 0
    queried_tokens: int = 0
    preemptions: int = 0


class Lifecycle:
    """States of requests.

    Methods take any state they are documented for and leave nothing half done.
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
        self.batch: Final = Batch(rows, limits.max_model_len)
        self.live: Final[dict[str, Request]] = {}
        self.parked: Final[dict[str, Request]] = {}
        self.kept: Final[dict[str, tuple[Lease, int]]] = {}
        """Blocks of ended requests, or of nobody's, that extensions still use, and how many of them
        do.
        """
        self.failed: list[RequestDelta] = []
        """Ends that came about while planning; the next update hands them out."""
        self.distrusted = 0
        """Last step of which the tokens of any request are not to be trusted."""
        self.counters = Counters()
        self.num_preemptions = 0
        self._policy = policy
        self._longest = kv.longest(limits.max_model_len, limits.max_step_tokens)
        self._arrivals = 0

    def add(self, source: EngineRequest) -> Request:
        """Queue a request. Raises `InvalidRequest`; nothing is kept of a refused one."""
        if source.request_id in self.live or source.request_id in self.kept:
            raise InvalidRequest("request_id", f"{source.request_id!r} is in use; choose another.")
        self.limits.check(source, self._longest)
        lease = self.kv.open(source.cache_salt, source.cache_domains, source.spans, source.beside)
        request = Request(
            source, self._arrivals, self.limits.max_model_len, lease, self.batch.columns
        )
        self._arrivals += 1
        request.rank = self._rank(request)
        self.extensions.arrived(request)
        self.live[request.request_id] = request
        self.queue.add(request)
        return request

    def _rank(self, request: Request) -> Rank:
        key = () if self._policy is None else self._policy.key(request.facts())
        return key, request.arrival

    def park(self, request: Request) -> None:
        """Take a waiting request out of the queue until `wake`."""
        self.queue.remove(request)
        request.state = State.PARKED
        self.parked[request.request_id] = request

    def wake(self, request_id: str) -> None:
        """Queue a parked request again; does nothing for any other."""
        request = self.parked.pop(request_id, None)
        if request is not None:
            request.state = State.WAITING
            if request.reserved is not None:
                # Before everybody who would need its blocks to start, or both would wait for each
                # other.
                request.rank = (), request.arrival - _BEFORE_ALL
            self.queue.add(request)

    def forgo(self, request: Request) -> None:
        """Give back what a waiting request has reserved, and its place before all others."""
        self.queue.remove(request)
        self.kv.close(request.lease)
        request.reserved = None
        request.rank = self._rank(request)
        self.queue.add(request)

    def start(self, request: Request) -> None:
        """Give the head of the queue, which has its blocks, a row."""
        self.queue.remove(request)
        if request.rank[1] != request.arrival:
            request.rank = self._rank(request)
        request.reserved = None
        request.spoiled = False
        self.batch.enter(request)

    def recompute(self, request: Request, position: int) -> None:
        """Compute again what a request, live or ended, has cached at or after `position`, and all
        that came of it.
        """
        if request.row >= 0 and request.planned <= position:
            return
        request.misled = True
        self.kv.distrust(request.lease, request.tokens[: request.planned], position)
        for other in [
            r for r in self.live.values() if self.kv.shares(request.lease, r.lease, position)
        ]:
            if other.reserved is not None:
                other.spoiled |= other is request or position < other.reserved
                continue
            if other.row >= 0:
                if other.planned <= position:
                    continue
                self.preempt(other, offer=False)
            other.distrusted = self.distrusted = self.batch.issued

    def preempt(self, request: Request, *, offer: bool = True) -> None:
        """Take row and blocks from a running request; it waits to be computed again from its
        tokens.

        `offer`: what it computed may be found by others, and by itself.
        """
        self.batch.leave(request)
        if offer:
            self.kv.commit(request.lease, request.tokens, min(request.planned, request.num_tokens))
        self.kv.close(request.lease)
        request.computed = 0
        request.num_preemptions += 1
        self.counters.preemptions += 1
        self.num_preemptions += 1
        request.state = State.WAITING
        request.rank = self._rank(request)
        self.queue.add(request)

    def end(self, request: Request, *, forget: bool = False) -> None:
        """End a live request in any state. `forget`: what it computed must not be found by others."""
        if request.state is State.WAITING:
            self.queue.remove(request)
        elif request.state is State.PARKED:
            del self.parked[request.request_id]
        else:
            self.batch.leave(request)
        request.state = State.ENDED
        del self.live[request.request_id]
        if forget:
            request.lease.offered = 0
        else:
            self.kv.commit(request.lease, request.tokens, min(request.planned, request.num_tokens))
        keepers = 0
        try:
            keepers = self.extensions.finished(request)
        finally:
            if keepers:
                self.kept[request.request_id] = (request.lease, keepers)
            else:
                self.kv.close(request.lease, forget=forget)

    def fail(self, request: Request, message: str) -> RequestDelta:
        """End a live request that failed alone."""
        self.end(request, forget=True)
        return request.say(finish_reason="error", error=message)

    def release(self, request_id: str) -> None:
        """One extension no longer uses the blocks of an ended request, or those kept under a name;
        does nothing for others.
        """
        lease, keepers = self.kept.pop(request_id, (None, 0))
        if lease is not None and keepers > 1:
            self.kept[request_id] = (lease, keepers - 1)
        elif lease is not None:
            self.kv.close(lease)

    def check(self, ended_rows: list[int]) -> None:
        """Assert that every request is in exactly one place and every lease has exactly one holder."""
        batch = self.batch
        columns = self.batch.columns
        holders = batch.running
        assert len(self.live) == len(holders) + len(self.parked) + len(self.queue), (
            "a request is in no or two places"
        )
        for request in self.live.values():
            waiting = request.state in (State.WAITING, State.PARKED)
            assert waiting == (request.row < 0), f"{request.request_id}: row and state disagree"
            holds = any(request.lease.tables) and request.reserved is None
            assert not (waiting and holds), (
                f"{request.request_id}: waits and holds blocks that were not reserved"
            )
        assert columns.live.tolist() == [
            batch.at(row) is not None for row in range(batch.rows.num_rows)
        ], "a row lives without a request"
        for request in holders:
            row = request.row
            name = request.request_id
            planned, total, known = (
                int(c[row]) for c in (columns.planned, columns.total, columns.known)
            )
            assert batch.at(row) is request, f"{name}: somebody else has its row"
            assert known <= total <= request.limit, f"{name}: planned beyond its end"
            assert planned < total, f"{name}: computes what it does not know"
            assert planned + columns.slack[row] <= columns.last[row], (
                f"{name}: guessed beyond its end"
            )
            assert planned <= columns.capacity[row] == request.lease.capacity, f"{name}: no room"
            assert (request in batch.prompts) == (planned + 1 < total), (
                f"{name}: in the wrong place"
            )
        assert [r.rank for r in batch.prompts] == sorted(r.rank for r in batch.prompts)
        batch.rows.check([request.row for request in holders], ended_rows)
        self.kv.check(
            [*(r.lease for r in self.live.values()), *(lease for lease, _ in self.kept.values())]
        )
