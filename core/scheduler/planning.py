"""Fills one step: who computes how many tokens, within budget, rows and blocks. Knows no result and no feature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from core.contracts.scheduling import MayStart
from core.errors import PluginError
from core.kv import Hit
from core.kv.manager import Appended
from core.scheduler.cohort import Members
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.request import Request, State
from core.step import NewRow, StepPlan

LOOK_AHEAD_TOKENS: Final = 128
"""Room a steady request takes at a time while blocks are plentiful."""


@dataclass(slots=True)
class Flight:
    """What is remembered of a plan until its result is in."""

    plan: StepPlan
    steady: Members
    others: list[Request]
    """Of `plan.rows`."""

    @property
    def requests(self) -> list[Request]:
        """All that the plan names."""
        return [*self.steady.requests, *self.others]


@dataclass(slots=True)
class _Draft:
    """A step being filled. The cohort's part is implied: one token for each member that stays in it."""

    step: int
    budget: int
    requests: list[Request] = field(default_factory=list)
    """All who are not in the cohort; `starts` and `counts` are parallel, `samples` indices."""
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    new: list[NewRow] = field(default_factory=list)
    blocks: list[tuple[int, int, list[int]]] = field(default_factory=list)
    look_ahead: int = 1
    """Tokens for which a steady request takes room."""
    short: bool = False
    """Somebody got no block; nobody new may start."""
    preempted_rows: set[int] = field(default_factory=set)


class Planner:
    """Makes plans. Running requests come first, then waiting ones; the lowest-ranked yields when blocks run out."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._limits: Final = life.limits
        self._kv: Final = life.kv
        self._batch: Final = life.batch
        self._cohort: Final = life.batch.cohort
        self._extensions: Final = life.extensions
        self._max_step_tokens: Final = life.limits.max_step_tokens
        self._ended: list[int] = []

    @property
    def ended_rows(self) -> list[int]:
        """Rows the next plan will announce as ended."""
        return self._ended

    def plan(self) -> tuple[StepPlan, Flight] | None:
        """Return the next step and what to remember of it; None if nothing can be computed now."""
        batch, cohort = self._batch, self._cohort
        due = cohort.due()
        if not due and cohort and not (batch.running or batch.rows.leaving or self._ended or len(self._life.queue)):
            return self._issue(StepPlan(batch.issued + 1, [], [], [], [], [], [], [], {}, cohort.members.rows), [])
        self._ended += batch.rows.collect(batch.returned)
        draft = _Draft(batch.issued + 1, 0)
        if due and self._kv.is_plentiful:
            draft.look_ahead = LOOK_AHEAD_TOKENS  # nobody misses them, and this comes up less often
        for request in due:
            if request.state is State.STEADY:
                self._attend(draft, request)
        draft.budget = self._limits.max_num_batched_tokens - len(self._cohort)
        for request in tuple(self._batch.running):
            if request.state is State.RUNNING and draft.budget > 0:
                self._continue(draft, request)
        if not draft.short:
            self._admit(draft)
        if not draft.requests and not self._cohort:
            # The last one running yielded to blocks that are reserved; no result is to come, and others may start.
            again = draft.preempted_rows and self._batch.issued == self._batch.returned
            return self.plan() if again else None
        return self._emit(draft)

    # --- running requests --------------------------------------------------------------------------------

    def _attend(self, draft: _Draft, request: Request) -> None:
        """A steady request has come to the end of its tokens or of its blocks."""
        position, lease = self._cohort.position(request), request.lease
        if position >= request.limit - 2:
            self._batch.stall(request)  # its last token may come from any step but a steady one
            return
        if self._kv.is_windowed:
            # What leaves the window can be found again only if it was offered; all else is when the request ends.
            self._kv.commit(lease, request.tokens, min(position, len(request.tokens)))
            self._kv.trim(lease, position)
        if position >= lease.capacity:
            end = min(position + draft.look_ahead, request.limit - 1)
            appended = self._make_room(draft, request, position, end)
            if appended is None:
                if request.state is State.STEADY:
                    self._batch.stall(request)
                return
            draft.blocks += [(request.row, group, blocks) for group, blocks in appended]
        self._cohort.call_at(request, min(lease.capacity, request.limit - 2))

    def _continue(self, draft: _Draft, request: Request) -> None:
        """Plan the next tokens of a running request that is not steady."""
        if request.extra:
            return  # where it goes on is known when the step in flight has returned
        start = request.planned
        count = min(request.total - start, draft.budget, self._max_step_tokens)
        try:
            extra = self._drafts(draft, request, start, count)
        except PluginError as error:
            self._life.failed.append(self._life.fail(request, str(error)))
            return
        self._kv.trim(request.lease, start)
        appended = self._make_room(draft, request, start, start + count + extra)
        if appended is not None:
            draft.blocks += [(request.row, group, blocks) for group, blocks in appended]
            self._enter(draft, request, start, count, extra)

    def _drafts(self, draft: _Draft, request: Request, start: int, count: int) -> int:
        """Return how many tokens beyond the known ones to compute, as far as every limit allows."""
        if not self._extensions.drafts or self._kv.keeps_states:
            return 0  # a state cannot be taken back to before a token that is refused
        if start + count < len(request.tokens) or request.total > len(request.tokens):
            return 0  # not at the end, or the end is not known yet
        room = min(draft.budget, self._max_step_tokens) - count
        return max(0, min(self._extensions.extra_tokens(request), room, request.limit - request.total - 1))

    def _make_room(self, draft: _Draft, request: Request, start: int, end: int) -> Appended | None:
        """Return the blocks appended for start..end, preempting lower-ranked requests; None: not in this step."""
        while True:
            appended = self._kv.extend(request.lease, start, end)
            if appended is not None:
                return appended
            draft.short = True
            if self._batch.draining or self._kv.will_fit(request.lease, start, end):
                return None  # steps in flight will bring blocks; preempting more would be for nothing
            victim = self._batch.lowest()
            draft.preempted_rows.add(victim.row)
            self._life.preempt(victim)
            if victim is request:
                return None

    # --- waiting requests --------------------------------------------------------------------------------

    def _admit(self, draft: _Draft) -> None:
        while draft.budget > 0 and self._batch.rows.num_free:
            request = self._life.queue.head
            if request is None or request.last_step > self._batch.returned:
                return  # a preempted one starts again when its results are in
            try:
                if not self._start(draft, request):
                    return
            except PluginError as error:
                self._life.failed.append(self._life.fail(request, str(error)))

    def _start(self, draft: _Draft, request: Request) -> bool:
        """Start the head of the queue, or park it; False if it must wait where it is."""
        if request.spoiled and request.reserved is not None:
            self._life.forgo(request)
            return True
        tokens, lease = request.tokens, request.lease
        total = request.total = len(tokens)
        answer = self._extensions.may_start(request)
        if answer is MayStart.PARK or (answer is MayStart.RESERVE and self._kv.fits_empty(total, total)):
            return self._park(request, reserve=answer is MayStart.RESERVE)
        hit = self._find(request) if request.reserved is None else Hit(request.reserved)
        remote = 0 if request.spoiled else self._extensions.cached_tokens(request, hit.num_tokens)
        start = min(hit.num_tokens + remote, total - 1)
        budget = self._limits.max_num_batched_tokens
        count = min(total - start, draft.budget, self._max_step_tokens)
        if not self._limits.chunked_prefill and start + count < total <= budget:
            return False
        if request.reserved is not None:
            self._kv.trim(lease, start)
        elif not self._kv.admit(lease, hit, start, start + count, total, self._max_step_tokens):
            return False
        if not request.started:
            request.started = True
            request.num_cached = min(start, request.prompt_len)
            self._life.counters.cached_tokens += request.num_cached
            self._life.counters.queried_tokens += total
        self._life.start(request)
        source, tables = request.source, [list(table) for table in lease.tables]
        known, prompt_len, eos = list(tokens), request.prompt_len, source.eos_token_ids
        row, name, sampling, seed = request.row, source.request_id, source.sampling, source.seed
        more = source.pooling, source.encoder
        draft.new.append(NewRow(row, name, known, prompt_len, sampling, seed, eos, tables, *more))
        self._enter(draft, request, start, count, 0)
        return True

    def _park(self, request: Request, *, reserve: bool) -> bool:
        """Park the head of the queue; False if it must wait there until what it reserves is free."""
        if reserve and request.reserved is None:
            lease, total, hit = request.lease, len(request.tokens), self._find(request)
            if not self._kv.admit(lease, hit, hit.num_tokens, total, total, total):
                return False
            request.reserved, request.spoiled = hit.num_tokens, False
            self._extensions.reserved(request, [list(table) for table in lease.tables], hit.num_tokens)
        self._life.park(request)
        return True

    def _find(self, request: Request) -> Hit:
        return self._kv.find(request.lease, request.tokens, len(request.tokens) - 1) if request.reads_cache else Hit()

    # --- the plan ----------------------------------------------------------------------------------------

    def _enter(self, draft: _Draft, request: Request, start: int, count: int, extra: int) -> None:
        """Write a request's part of the step into the draft and move its counts on, optimistically."""
        end = request.planned = start + count
        request.last_step = draft.step
        if end == request.total:
            draft.samples.append(len(draft.requests))
            request.total += 1
            request.extra = extra
        draft.requests.append(request)
        draft.starts.append(start)
        draft.counts.append(count + extra)
        draft.budget -= count + extra
        self._kv.commit(request.lease, request.tokens, min(end, len(request.tokens)))

    def _emit(self, draft: _Draft) -> tuple[StepPlan, Flight]:
        """Turn the draft into a plan: the cohort first, then everyone else in order of rank."""
        blocks = draft.blocks
        if draft.preempted_rows:
            blocks = [entry for entry in blocks if entry[0] not in draft.preempted_rows]
        rows, steady = [request.row for request in draft.requests], self._cohort.members.rows
        columns = rows, draft.starts, draft.counts, draft.samples
        plan = StepPlan(draft.step, self._ended, draft.new, blocks, *columns, {}, steady)
        self._ended = []
        return self._issue(plan, draft.requests)

    def _issue(self, plan: StepPlan, others: list[Request]) -> tuple[StepPlan, Flight]:
        """Let a plan go: whoever it names is further by what it computes."""
        flight = Flight(plan, self._cohort.members, others)
        self._cohort.advance()
        for request in others:
            self._batch.settle(request)
        self._batch.issued = plan.step
        self._kv.step_issued(plan.step)
        self._extensions.planned(plan)
        return plan, flight
