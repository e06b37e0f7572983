"""Fills one step: who computes how many tokens, within budget, rows and blocks. Knows no result and
no feature.

Whoever has one token to compute does so in every step; these rows are moved by arithmetic over
columns. The others, prompts under way, are planned one by one.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np

from core.contracts.scheduling import MayStart
from core.errors import PluginError
from core.kv import Hit
from core.kv.manager import Appended
from core.logs import Seldom
from core.scheduler.batch import Members
from core.scheduler.columns import Ints, where
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.request import Request, State
from core.scheduler.view import Running
from core.step import NewRow, StepPlan

log = logging.getLogger(__name__)

LOOK_AHEAD_TOKENS: Final = 128
"""Room a decoding request takes at a time while blocks are plentiful."""
_rank = attrgetter("rank")


@dataclass(slots=True)
class Flight:
    """What is remembered of a plan until its result is in."""

    plan: StepPlan
    steady: Members
    others: list[Request]
    """Of `plan.rows`."""
    guesses: Ints | None
    """Of the steady rows; None: there are none."""
    ends: list[int]
    """Places of the steady rows that may come to their end by it."""
    unsure: list[Request]
    """Those that start in blocks which were filled from elsewhere."""

    @property
    def requests(self) -> list[Request]:
        """All that the plan names."""
        return [*self.steady.requests, *self.others]


@dataclass(slots=True)
class _Draft:
    """A step being filled. `starts` and `counts` are parallel to `requests`, `samples` indices."""

    step: int
    budget: int
    requests: list[Request] = field(default_factory=list)
    """All who have more than one token to compute."""
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    new: list[NewRow] = field(default_factory=list)
    blocks: list[tuple[int, int, list[int]]] = field(default_factory=list)
    most: dict[int, int] = field(default_factory=dict)
    """Tokens that a row may compute, where an extension limits it."""
    short: bool = False
    """Somebody got no block; nobody new may start."""
    preempted_rows: set[int] = field(default_factory=set)
    unsure: list[Request] = field(default_factory=list)


class Planner:
    """Makes plans.

    Running requests come first, then waiting ones; the lowest-ranked yields when blocks run out.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._limits: Final = life.limits
        self._kv: Final = life.kv
        self._batch: Final = life.batch
        self._columns: Final = life.batch.columns
        self._extensions: Final = life.extensions
        self._max_step_tokens: Final = life.limits.max_step_tokens
        self._running: Final = Running(life.batch)
        self._steady = life.batch.members(np.zeros(0, np.int64))
        self._most = 0
        """Tokens that each of these may compute in a step of all."""
        self._ended: list[int] = []
        self._seldom: Final = Seldom(log)

    @property
    def ended_rows(self) -> list[int]:
        """Rows the next plan will announce as ended."""
        return self._ended

    def plan(self) -> Flight | None:
        """Return the next step and what to remember of it; None if nothing can be computed now."""
        batch = self._batch
        extensions = self._extensions
        changes = batch.prompts or batch.rows.num_leaving or self._ended or len(self._life.queue)
        if batch.quiet > 0 and not changes and not extensions.limiting:
            self._running.rows = (
                self._steady.index
            )  # a plan that came to nothing may have left others
            again = extensions.guesses(self._running) if extensions.guessing else None
            counts = []
            each = 1
            if again is not None and (each := 1 + max(counts := again.tolist())) == 1:
                again = None
                counts = []
            if each <= batch.quiet and each <= self._most:
                batch.quiet -= each
                plan = StepPlan(
                    batch.issued + 1, [], [], [], [], [], [], [], {}, self._steady.rows, counts
                )
                return self._send(Flight(plan, self._steady, [], again, [], []))
        self._ended += batch.rows.collect(batch.returned)
        draft = _Draft(batch.issued + 1, self._limits.max_num_batched_tokens)
        index, most, guesses = self._decode(draft)
        if len(index) and self._limits.max_mixed_prefill_tokens and self._limits.chunked_prefill:
            draft.budget = min(draft.budget, self._limits.max_mixed_prefill_tokens)
        for request in tuple(batch.prompts):
            if request.state is State.RUNNING and draft.budget > 0:
                self._continue(draft, request)
        if draft.preempted_rows:
            stays = self._columns.live[index]
            index = index[stays]
            most = most[stays]
            guesses = None if guesses is None else guesses[stays]
        if not draft.short:
            self._admit(draft)
        if not draft.requests and not len(index):
            # The last one running yielded to blocks that are reserved; no result is to come, and
            # others may start.
            if draft.preempted_rows and batch.issued == batch.returned:
                return self.plan()
            if not self._extensions.pending():
                return None
        return self._emit(draft, index, most, guesses)

    # --- running requests -------------------------------------------------------------------------

    def _decode(self, draft: _Draft) -> tuple[Ints, Ints, Ints | None]:
        """Plan one token, and what is guessed behind it, of each row that has come to the end of
        its tokens.

        Returns the rows, where each of them stands at most, and the guesses.
        """
        columns = self._columns
        guesses = None
        index = columns.decoding().nonzero()[0]
        here = where(index)
        most = columns.planned[here] + columns.slack[here]
        limiting = self._extensions.limiting
        guessing = self._extensions.guessing
        if limiting or guessing:
            ready = most < columns.last[here]
            if np.count_nonzero(ready) < len(ready):  # beyond it only results in flight can tell
                index = index[ready]
                most = most[ready]
            self._running.rows = index
            draft.most = self._extensions.limits(self._running) if limiting else {}
            if draft.most:
                chosen = [draft.most.get(row, 1) > 0 for row in index.tolist()]
                self._running.rows = index = index[chosen]
                most = most[chosen]
            if guessing:
                guesses = self._wanted_guesses(draft, index, most)
        draft.budget -= len(index)
        ends = most + 1
        if guesses is not None:
            ends += guesses
            draft.budget -= int(np.add.reduce(guesses))
        due = (ends > columns.capacity[where(index)]).nonzero()[0]
        if len(due):
            self._give_room(draft, index, ends, guesses, due)
            stays = columns.live[index] & (ends <= columns.capacity[index])
            index = index[stays]
            most = most[stays]
            guesses = None if guesses is None else guesses[stays]
        return index, most, guesses

    def _wanted_guesses(self, draft: _Draft, index: Ints, most: Ints) -> Ints | None:
        """Return how many guesses are computed behind each row's known token, as far as every limit
        allows.
        """
        wanted = self._extensions.guesses(self._running) if len(index) else None
        if wanted is None:
            return None
        room = np.minimum(self._columns.last[where(index)] - most, self._max_step_tokens) - 1
        guesses: Ints = np.maximum(np.minimum(wanted, room), 0)
        if draft.most:
            limits = [draft.most.get(row, sys.maxsize) - 1 for row in index.tolist()]
            guesses = np.minimum(guesses, limits)
        left = min(draft.budget - len(index), self._kv.most_guesses)
        if np.add.reduce(guesses) > left:
            guesses = np.maximum(np.minimum(left - np.cumsum(guesses) + guesses, guesses), 0)
        return guesses

    def _give_room(
        self, draft: _Draft, index: Ints, ends: Ints, guesses: Ints | None, due: Ints
    ) -> None:
        """Take blocks for rows at the end of theirs, best first; who gets none for its guesses goes
        on without them.
        """
        plentiful = (
            self._kv.is_plentiful
        )  # nobody misses a block taken early, and this comes up less often
        rows = index.tolist()
        places = {
            request.rank: place
            for place in due.tolist()
            if (request := self._batch.at(rows[place])) is not None
        }
        for _, place in sorted(places.items()):
            request = self._batch.at(rows[place])
            if request is None:
                continue  # it has yielded to a better one
            start = request.planned
            end = int(ends[place])
            lease = request.lease
            guessed = 0 if guesses is None else int(guesses[place])
            if self._kv.is_windowed:
                # What leaves the window can be found again only if it was offered; all else is when
                # the request ends.
                self._kv.commit(lease, request.tokens, min(start, request.num_tokens))
                self._kv.trim(lease, start)
            appended = None
            if plentiful or guessed:
                most = max(end, start + LOOK_AHEAD_TOKENS) if plentiful else end
                appended = self._kv.extend(lease, start, min(most, request.limit - 1))
            if appended is None:
                if guesses is not None:
                    ends[place], guesses[place] = end - guessed, 0
                appended = self._make_room(draft, request, start, end - guessed)
            if appended is not None:
                self._note(draft, request, appended)

    def _note(self, draft: _Draft, request: Request, appended: Appended) -> None:
        self._columns.capacity[request.row] = request.lease.capacity
        draft.blocks += [(request.row, group, blocks) for group, blocks in appended]

    def _continue(self, draft: _Draft, request: Request) -> None:
        """Plan the next tokens of a prompt under way."""
        start = request.planned
        total = int(self._columns.total[request.row])
        count = min(
            total - start,
            draft.budget,
            self._max_step_tokens,
            draft.most.get(request.row, sys.maxsize),
        )
        if count <= 0:
            return
        self._kv.trim(request.lease, start)
        appended = self._make_room(draft, request, start, start + count)
        if appended is not None:
            self._note(draft, request, appended)
            self._enter(draft, request, start, count)

    def _make_room(self, draft: _Draft, request: Request, start: int, end: int) -> Appended | None:
        """Return the blocks appended for start..end, preempting lower-ranked requests; None: not in
        this step.
        """
        while True:
            appended = self._kv.extend(request.lease, start, end)
            if appended is not None:
                return appended
            draft.short = True
            if self._batch.is_draining or self._kv.will_fit(request.lease, start, end):
                return (
                    None  # steps in flight will bring blocks; preempting more would be for nothing
                )
            victim = self._batch.lowest()
            draft.preempted_rows.add(victim.row)
            self._life.preempt(victim)
            if victim is request:
                return None

    # --- waiting requests -------------------------------------------------------------------------

    def _admit(self, draft: _Draft) -> None:
        while draft.budget > 0 and self._batch.rows.num_free:
            request = self._life.queue.head
            if request is None or request.last_step > self._batch.returned:
                return  # a preempted one starts again when its results are in
            try:
                if not self._start(draft, request):
                    return
            except PluginError as error:
                if error.is_fault:
                    self._seldom.error(
                        error.told(None), f"{error} Request: {request.request_id!r}.", error
                    )
                self._life.failed.append(self._life.fail(request, error.told(request.request_id)))

    def _start(self, draft: _Draft, request: Request) -> bool:
        """Start the head of the queue, or park it; False if it must wait where it is."""
        if request.spoiled and request.reserved is not None:
            self._life.forgo(request)
            return True
        tokens = request.tokens
        lease = request.lease
        total = len(tokens)
        answer = self._extensions.may_start(request)
        if answer is MayStart.PARK or (
            answer is MayStart.RESERVE and self._kv.fits_empty(total, total)
        ):
            return self._park(request, reserve=answer is MayStart.RESERVE)
        hit = (
            self._find(request)
            if request.reserved is None
            else Hit(request.reserved, (), request.reserved)
        )
        if hit.loads and not self._kv.fits_empty(total, total):
            hit = Hit()
        remote = 0 if request.spoiled else self._extensions.cached_tokens(request, hit.num_tokens)
        start = min(hit.num_tokens + remote, total - 1)
        budget = self._limits.max_num_batched_tokens
        count = min(total - start, draft.budget, self._max_step_tokens)
        if not self._limits.chunked_prefill and start + count < total <= budget:
            return False
        room = total if hit.loads else start + count
        if room == total and self._kv.is_plentiful:  # it need not ask again soon
            room = min(total + LOOK_AHEAD_TOKENS, request.limit - 1)
        if request.reserved is not None:
            self._kv.trim(lease, start)
        elif not self._kv.admit(lease, hit, start, room, total, self._max_step_tokens):
            return False
        elif lease.loads and not self._extensions.load(request, lease.loads):
            request.reserved = (
                hit.num_tokens
            )  # in blocks that are being filled; it is woken when they are
            self._life.park(request)
            return True
        if remote:
            lease.unsure = min(lease.unsure, hit.num_tokens)
        if not request.started:
            request.started = True
            request.num_cached = min(start, request.prompt_len)
            self._life.counters.cached_tokens += request.num_cached
            self._life.counters.queried_tokens += total
        self._life.start(request)
        self._columns.capacity[request.row] = lease.capacity
        if lease.unsure < sys.maxsize:
            draft.unsure.append(request)
        source = request.source
        tables = [list(table) for table in lease.tables]
        eos = source.eos_token_ids
        more = (source.pooling, source.features, source.beside)
        row = request.row
        name = source.request_id
        sampling = source.sampling
        seed = source.seed
        draft.new.append(
            NewRow(row, name, list(tokens), request.prompt_len, sampling, seed, eos, tables, *more)
        )
        self._enter(draft, request, start, count)
        return True

    def _park(self, request: Request, *, reserve: bool) -> bool:
        """Park the head of the queue; False if it must wait there until what it reserves is free."""
        if reserve and request.reserved is None:
            lease = request.lease
            total = request.num_tokens
            hit = self._find(request)
            if not self._kv.admit(lease, hit, hit.num_tokens, total, total, total):
                return False
            request.reserved = hit.num_tokens
            request.spoiled = False
            if lease.loads:
                self._extensions.load(request, lease.loads)
            self._extensions.reserved(
                request, [list(table) for table in lease.tables], hit.num_tokens
            )
        self._life.park(request)
        return True

    def _find(self, request: Request) -> Hit:
        if not request.reads_cache:
            return Hit()
        return self._kv.find(
            request.lease, request.tokens, request.num_tokens - 1, tiers=not request.misled
        )

    # --- the plan ---------------------------------------------------------------------------------

    def _enter(self, draft: _Draft, request: Request, start: int, count: int) -> None:
        """Write a request's part of the step into the draft and move its counts on, optimistically."""
        end = start + count
        left = self._columns.compute(request.row, end)
        if not left:
            draft.samples.append(len(draft.requests))
        if left <= 1:
            self._batch.prompts.remove(request)
        draft.requests.append(request)
        draft.starts.append(start)
        draft.counts.append(count)
        draft.budget -= count
        self._kv.commit(request.lease, request.tokens, min(end, request.num_tokens))

    def _emit(self, draft: _Draft, index: Ints, most: Ints, guesses: Ints | None) -> Flight:
        """Turn the draft into a plan: rows that decode first, then everyone else in order of rank."""
        if draft.preempted_rows:
            draft.blocks = [entry for entry in draft.blocks if entry[0] not in draft.preempted_rows]
        if guesses is not None and not np.count_nonzero(guesses):
            guesses = None
        steady = self._batch.members(index)
        columns = self._columns
        room = 0
        ends = []
        if len(index):
            here = where(index)
            behind = most + 1 if guesses is None else most + 1 + guesses
            room = int(
                np.minimum.reduce(
                    np.minimum(columns.capacity[here], columns.last[here] - 1) - behind
                )
            )
            if room < 0:
                ends = (columns.last[here] <= behind).nonzero()[0].tolist()
        flight = self._issue(draft, steady, guesses, ends)
        self._steady = steady
        batch = self._batch
        # So many tokens need nothing but what this step did: no more room, and nobody's last one.
        batch.quiet = room if len(index) == len(batch) else 0
        each = self._limits.max_num_batched_tokens, len(index) + self._kv.most_guesses
        self._most = min(self._max_step_tokens, min(each) // max(1, len(index)))
        return flight

    def _issue(
        self, draft: _Draft, steady: Members, guesses: Ints | None, ends: list[int]
    ) -> Flight:
        """Let a plan go: whoever it names is further by what it computes."""
        counts = [] if guesses is None else [*guesses.tolist(), *(0 for _ in draft.samples)]
        rows = [request.row for request in draft.requests]
        columns = rows, draft.starts, draft.counts, draft.samples
        plan = StepPlan(
            draft.step, self._ended, draft.new, draft.blocks, *columns, {}, steady.rows, counts
        )
        self._ended = []
        return self._send(Flight(plan, steady, draft.requests, guesses, ends, draft.unsure))

    def _send(self, flight: Flight) -> Flight:
        plan = flight.plan
        self._columns.decode(flight.steady.index, flight.guesses)
        self._batch.issued = plan.step
        self._kv.step_issued(plan.step)
        self._extensions.planned(plan)
        return flight
