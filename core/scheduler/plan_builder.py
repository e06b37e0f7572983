"""The step under construction, and the step in flight that it becomes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from core.kv.manager import Appended
from core.scheduler.batch import Members
from core.scheduler.columns import Bools, Ints
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.request import Request
from core.step import NewRow, StepPlan


@dataclass(slots=True)
class InFlightStep:
    """A plan and its requests, remembered until the result arrives."""

    plan: StepPlan
    decodes: Members
    """Requests of `plan.decode_rows`."""
    others: list[Request]
    """Requests of `plan.rows`."""
    num_draft_tokens: Ints | None
    """Draft tokens per decode row; None without draft tokens."""
    finishing: list[int]
    """Indices of the decode rows that may reach their limit in this step."""
    unverified: list[Request]
    """Requests that start with loaded, unconfirmed blocks."""

    @property
    def requests(self) -> list[Request]:
        """All requests of the plan."""
        return [*self.decodes.requests, *self.others]


@dataclass(slots=True)
class DecodeStep:
    """The decode rows of a step under construction."""

    rows: Ints
    ends: Ints
    """Upper bound on each row's computed tokens after the step, draft tokens
    included.
    """
    num_draft_tokens: Ints | None = None
    """Draft tokens per row; None without draft tokens."""

    def select(self, chosen: Bools) -> None:
        """Keep the chosen rows only."""
        self.rows = self.rows[chosen]
        self.ends = self.ends[chosen]
        if self.num_draft_tokens is not None:
            self.num_draft_tokens = self.num_draft_tokens[chosen]

    def add_draft_tokens(self, counts: Ints) -> None:
        """Add draft tokens to each row."""
        self.num_draft_tokens = counts
        self.ends += counts

    def drop_draft_tokens(self, index: int) -> None:
        """Remove the draft tokens of the row at `index`."""
        if self.num_draft_tokens is not None:
            self.ends[index] -= self.num_draft_tokens[index]
            self.num_draft_tokens[index] = 0

    def num_tokens(self) -> int:
        """Return the tokens to compute."""
        count = len(self.rows)
        if self.num_draft_tokens is not None:
            count += int(np.add.reduce(self.num_draft_tokens))
        return count


@dataclass(slots=True)
class PlanBuilder:
    """A step under construction.

    `starts` and `counts` are parallel to `requests`; `samples` are indices into it.
    """

    life: Lifecycle
    step: int
    budget: int
    """Tokens left of the step's token budget."""
    prefill_limit: int = sys.maxsize
    """Maximum of `new_tokens`, and of the tokens of each resumed request."""
    new_tokens: int = 0
    """Tokens of requests without output."""
    requests: list[Request] = field(default_factory=list)
    """Requests with prompt tokens in this step."""
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    new: list[NewRow] = field(default_factory=list)
    blocks: list[tuple[int, int, list[int]]] = field(default_factory=list)
    limits: dict[int, int] = field(default_factory=dict)
    """Maximum of tokens by row, for rows that an extension limits."""
    out_of_blocks: bool = False
    """Whether a running request is out of blocks, so no new request is
    admitted.
    """
    preempted_rows: set[int] = field(default_factory=set)
    unverified: list[Request] = field(default_factory=list)

    def room(self, request: Request) -> int:
        """Return how many tokens of a request fit."""
        # a resumed request's client waits already
        taken = self.new_tokens if request.num_tokens == request.prompt_len else 0
        return min(self.budget, self.prefill_limit - taken)

    def add_blocks(self, request: Request, appended: Appended) -> None:
        """Add blocks appended to a running request's block tables."""
        row = request.row
        self.life.batch.columns.capacity[row] = request.lease.capacity
        self.blocks += [(row, group, blocks) for group, blocks in appended]

    def add_prompt(self, request: Request, start: int, count: int) -> None:
        """Add `count` tokens of a request; its counters advance before the step has run."""
        end = start + count
        batch = self.life.batch
        left = batch.columns.compute(request.row, end)
        if not left:
            self.samples.append(len(self.requests))
        if left <= 1:
            batch.prompts.remove(request)
        self.requests.append(request)
        self.starts.append(start)
        self.counts.append(count)
        self.budget -= count
        known = request.num_tokens
        if known == request.prompt_len:
            self.new_tokens += count
        self.life.kv.publish(request.lease, request.tokens, min(end, known))

    def finish(
        self, decodes: Members, decode: DecodeStep, finishing: list[int], ended: list[int]
    ) -> InFlightStep:
        """Return the finished step: decode rows first, then all others in rank order."""
        if self.preempted_rows:
            self.blocks = [e for e in self.blocks if e[0] not in self.preempted_rows]
        drafts = decode.num_draft_tokens
        if drafts is not None and not np.count_nonzero(drafts):
            drafts = None
        counts: list[int] = []
        if drafts is not None:
            counts = [*drafts.tolist(), *(0 for _ in self.samples)]
        plan = StepPlan(
            step=self.step,
            ended=ended,
            new=self.new,
            blocks=self.blocks,
            rows=[request.row for request in self.requests],
            starts=self.starts,
            counts=self.counts,
            samples=self.samples,
            decode_rows=decodes.rows,
            num_draft_tokens=counts,
        )
        return InFlightStep(plan, decodes, self.requests, drafts, finishing, self.unverified)
