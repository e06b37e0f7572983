"""Fills one step with requests, within the token budget, the rows and the KV
blocks.

Knows no result and no feature. Rows with one token to compute do so in every step; they
are moved by column arithmetic. Requests with prompt tokens are planned one by one.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

from core.scheduler.admission import BatchAdmission
from core.scheduler.allocation import BlockAllocator
from core.scheduler.batch import DecodeRows
from core.scheduler.columns import Ints, as_slice
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.plan_builder import DecodeStep, InFlightStep, PlanBuilder
from core.scheduler.request import Request, State
from core.step import StepPlan


class Planner:
    """Builds plans: running requests first, then waiting ones."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._limits: Final = life.limits
        self._kv: Final = life.kv
        self._batch: Final = life.batch
        self._columns: Final = life.batch.columns
        self._extensions: Final = life.extensions
        self._max_step_tokens: Final = life.limits.max_step_tokens
        self._admission: Final = BatchAdmission(life)
        self._allocator: Final = BlockAllocator(life)
        self._decode_rows: Final = DecodeRows(life.batch)
        self._decodes = life.batch.members(np.zeros(0, np.int64))
        """Decode rows of the last step."""
        self._max_row_tokens = 0
        """Tokens that each of these may compute in one step."""
        self._ended: list[int] = []
        """Rows that the next plan will list as ended."""

    def plan(self) -> InFlightStep | None:
        """Return the next step; None if nothing can be computed now."""
        repeated = self._repeat_decode()
        if repeated is not None:
            return repeated
        batch = self._batch
        limits = self._limits
        self._ended += batch.rows.collect_ended(batch.returned)
        builder = PlanBuilder(self._life, batch.issued + 1, limits.max_num_batched_tokens)
        decode = self._plan_decode(builder)
        if len(decode.rows) and limits.max_mixed_prefill_tokens and limits.chunked_prefill:
            builder.prefill_limit = limits.max_mixed_prefill_tokens
        for request in tuple(batch.prompts):
            if request.state is State.RUNNING and builder.room(request):
                self._continue_prompt(builder, request)
        if builder.preempted_rows:
            decode.select(self._columns.live[decode.rows])
        if not builder.out_of_blocks:
            self._admission.admit_waiting(builder)
        if not builder.requests and not len(decode.rows):
            # The last running request was preempted for reserved blocks: others may
            # start now.
            if builder.preempted_rows and batch.issued == batch.returned:
                return self.plan()
            if not self._extensions.pending():
                return None
        return self._emit(builder, decode)

    def _repeat_decode(self) -> InFlightStep | None:
        """Return the last step's decode rows; None if anything else has changed."""
        batch = self._batch
        if batch.num_unchanged <= 0 or batch.prompts or batch.rows.num_leaving or self._ended:
            return None
        extensions = self._extensions
        if len(self._life.queue) or extensions.is_limiting:
            return None
        decodes = self._decodes
        drafts: Ints | None = None
        counts: list[int] = []
        row_tokens = 1
        if extensions.is_drafting:
            self._decode_rows.rows = decodes.index
            drafts = extensions.num_draft_tokens(self._decode_rows)
            if drafts is not None:
                counts = drafts.tolist()
                row_tokens = 1 + max(counts)
                if row_tokens == 1:
                    drafts = None
                    counts = []
        if row_tokens > batch.num_unchanged or row_tokens > self._max_row_tokens:
            return None
        batch.num_unchanged -= row_tokens
        plan = StepPlan(batch.issued + 1, [], [], [], [], [], [], [], {}, decodes.rows, counts)
        return self._issue(InFlightStep(plan, decodes, [], drafts, [], []))

    # --- decode rows --------------------------------------------------------

    def _plan_decode(self, builder: PlanBuilder) -> DecodeStep:
        """Plan one token and its draft tokens of each row with one token to compute."""
        columns = self._columns
        extensions = self._extensions
        rows = columns.decoding().nonzero()[0]
        own = as_slice(rows)
        decode = DecodeStep(rows, columns.planned[own] + columns.num_unverified[own] + 1)
        limiting = extensions.is_limiting
        drafting = extensions.is_drafting
        if limiting or drafting:
            in_range = decode.ends <= columns.last_cached_position[own]
            if np.count_nonzero(in_range) < len(in_range):
                # the others may end with a result in flight
                decode.select(in_range)
            self._decode_rows.rows = decode.rows
            if limiting:
                self._apply_limits(builder, decode)
            if drafting and len(decode.rows):
                self._add_draft_tokens(builder, decode)
        builder.budget -= decode.num_tokens()
        over = decode.ends > columns.capacity[as_slice(decode.rows)]
        needs_blocks = over.nonzero()[0]
        if len(needs_blocks):
            self._allocator.allocate_decode(builder, decode, needs_blocks)
            fits = decode.ends <= columns.capacity[decode.rows]
            decode.select(columns.live[decode.rows] & fits)
        return decode

    def _apply_limits(self, builder: PlanBuilder, decode: DecodeStep) -> None:
        """Record the extensions' limits; remove decode rows limited to 0."""
        limits = self._extensions.limits(self._decode_rows)
        builder.limits = limits
        if limits:
            decode.select(np.isin(decode.rows, self._decode_rows.rows))

    def _add_draft_tokens(self, builder: PlanBuilder, decode: DecodeStep) -> None:
        """Add the draft tokens that extensions request, within every limit."""
        requested = self._extensions.num_draft_tokens(self._decode_rows)
        if requested is None:
            return
        rows = decode.rows
        room = self._columns.last_cached_position[as_slice(rows)] - decode.ends
        room = np.minimum(room, self._max_step_tokens - 1)
        counts: Ints = np.maximum(np.minimum(requested, room), 0)
        if builder.limits:
            limits = [builder.limits.get(row, sys.maxsize) - 1 for row in rows.tolist()]
            counts = np.minimum(counts, limits)
        left = min(builder.budget - len(rows), self._kv.max_draft_tokens)
        if np.add.reduce(counts) > left:
            taken_before = np.cumsum(counts) - counts
            counts = np.maximum(np.minimum(left - taken_before, counts), 0)
        decode.add_draft_tokens(counts)

    # --- prompts ------------------------------------------------------------

    def _continue_prompt(self, builder: PlanBuilder, request: Request) -> None:
        """Plan the next chunk of a running request's prompt."""
        start = request.planned
        total = int(self._columns.total[request.row])
        limit = builder.limits.get(request.row, sys.maxsize)
        count = min(total - start, builder.room(request), self._max_step_tokens, limit)
        count = self._extensions.prefill_chunk(request, start, count)
        if count <= 0:
            return
        self._kv.trim(request.lease, start)
        appended = self._allocator.allocate_or_preempt(builder, request, start, start + count)
        if appended is not None:
            builder.add_blocks(request, appended)
            builder.add_prompt(request, start, count)

    # --- the plan -----------------------------------------------------------

    def _emit(self, builder: PlanBuilder, decode: DecodeStep) -> InFlightStep:
        """Issue the finished step, and work out how often it can be repeated."""
        batch = self._batch
        columns = self._columns
        rows = decode.rows
        num_rows = len(rows)
        num_free_slots = 0
        finishing: list[int] = []
        if num_rows:
            own = as_slice(rows)
            last = columns.last_cached_position[own]
            free_slots = np.minimum(columns.capacity[own], last - 1) - decode.ends
            num_free_slots = int(np.minimum.reduce(free_slots))
            if num_free_slots < 0:
                finishing = (last <= decode.ends).nonzero()[0].tolist()
        decodes = batch.members(rows)
        step = self._issue(builder.finish(decodes, decode, finishing, self._ended))
        self._ended = []
        self._decodes = decodes
        # So many more tokens need no block and end no request.
        batch.num_unchanged = num_free_slots if num_rows == len(batch) else 0
        step_tokens = self._limits.max_num_batched_tokens
        step_tokens = min(step_tokens, num_rows + self._kv.max_draft_tokens)
        self._max_row_tokens = min(self._max_step_tokens, step_tokens // max(1, num_rows))
        return step

    def _issue(self, step: InFlightStep) -> InFlightStep:
        """Advance the counters by what the step computes, and show it to the extensions."""
        number = step.plan.step
        self._columns.decode(step.decodes.index, step.num_draft_tokens)
        self._batch.issued = number
        self._kv.step_issued(number)
        self._extensions.planned(step.plan)
        return step
