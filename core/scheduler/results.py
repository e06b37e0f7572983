"""Reads step results: accepted tokens to requests, ends, and the outputs for
the client.

Knows no budget and no blocks.
"""

from __future__ import annotations

from itertools import compress
from operator import sub
from typing import Final

import numpy as np

from core.errors import EngineError
from core.scheduler.batch import Members
from core.scheduler.columns import Bools, Ints
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.plan_builder import InFlightStep
from core.scheduler.request import Request, State
from core.step import Logprobs, RequestDelta, StepOutputs, StepResult


class ResultReader:
    """Turns step results into outputs; tokens of ended requests are
    dropped.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._batch: Final = life.batch
        self._columns: Final = life.batch.columns

    def read(self, step: InFlightStep, result: StepResult) -> StepOutputs:
        """Return the outputs of all requests in the step."""
        plan = step.plan
        decodes = step.decodes
        tokens = result.tokens
        self._check_rows(step, result)
        if step.num_draft_tokens is not None:
            self._columns.draft_steps.popleft()
        rare = result.errors or result.logprobs or result.prompt_logprobs or result.pooled
        if rare or plan.step <= self._life.invalid_through_step:
            return StepOutputs([], [], self._read_one_by_one(step, result))
        counts = result.accepted
        prompt_counts: list[int] = []
        prompt_tokens: list[int] = []
        if plan.samples:
            num_decodes = len(decodes.rows)
            prompt_counts = counts[num_decodes:] or [1] * len(plan.samples)
            counts = counts[:num_decodes]
            split = len(tokens) - sum(prompt_counts)
            prompt_tokens = tokens[split:]
            tokens = tokens[:split]
        unchanged = decodes.departures == self._batch.departures
        if unchanged and not step.finishing and self._batch.stops.isdisjoint(tokens):
            outputs = self._read_decodes(step, tokens, counts)
        elif counts:
            outputs = self._read_with_drafts(step, tokens, counts)
        else:
            outputs = self._read_with_finishes(step, tokens)
        for index, count in zip(plan.samples, prompt_counts, strict=True):
            request = step.others[index]
            own = prompt_tokens[:count]
            prompt_tokens = prompt_tokens[count:]
            if request.state is not State.ENDED:
                outputs.deltas.append(self._append(request, own, 0, None, None))
        return outputs

    def _check_rows(self, step: InFlightStep, result: StepResult) -> None:
        num_rows = len(step.decodes.rows) + len(step.plan.samples)
        num_returned = len(result.accepted or result.tokens)
        if num_returned != num_rows:
            raise EngineError(
                f"result of step {step.plan.step}: got tokens of {num_returned} rows; "
                f"expected {num_rows}."
            )

    def _still_owned(self, decodes: Members) -> list[bool]:
        owners = zip(decodes.requests, decodes.rows, strict=True)
        return [request.row == row for request, row in owners]

    def _read_decodes(
        self, step: InFlightStep, tokens: list[int], counts: list[int]
    ) -> StepOutputs:
        """Read the common case: no request ends, none has left. Hot path."""
        decodes = step.decodes
        drafts = step.plan.num_draft_tokens
        if counts and not _are_possible(counts, drafts or [0] * len(counts)):
            return self._read_with_drafts(step, tokens, counts)
        self._columns.append_tokens(decodes.index, tokens, counts)
        return StepOutputs(decodes.request_ids, tokens, [], counts)

    def _read_with_finishes(self, step: InFlightStep, tokens: list[int]) -> StepOutputs:
        """Read a step in which requests may end or have left; only those are read singly."""
        decodes = step.decodes
        stops = self._batch.stops
        needs_check = set(step.finishing)
        if not stops.isdisjoint(tokens):
            needs_check.update(i for i, token in enumerate(tokens) if token in stops)
        if decodes.departures != self._batch.departures:
            owned = enumerate(self._still_owned(decodes))
            needs_check.update(i for i, same in owned if not same)
        outputs = StepOutputs(decodes.request_ids.copy(), tokens.copy(), [])
        # Also writes the tokens of rows that are checked; those of rows that were left
        # are stale.
        self._columns.append_tokens(decodes.index, tokens, [])
        order = sorted(needs_check)
        for index in reversed(order):
            del outputs.request_ids[index]
            del outputs.token_ids[index]
        for index in order:
            request = decodes.requests[index]
            if request.state is State.ENDED:
                continue
            own = tokens[index : index + 1]
            has_row = request.row >= 0
            delta = self._append(request, own, 0, None, None, in_columns=has_row)
            outputs.deltas.append(delta)
        if not outputs.deltas:
            self._batch.refresh_stops()
        return outputs

    def _read_with_drafts(
        self, step: InFlightStep, tokens: list[int], counts: list[int]
    ) -> StepOutputs:
        """Read a step with draft tokens in which requests may end or have left."""
        decodes = step.decodes
        drafts = step.num_draft_tokens
        accepted = np.fromiter(counts, np.int64, len(counts))
        ends = np.cumsum(accepted)
        needs_check = self._needs_check(step, tokens, accepted, ends)
        plain = ~needs_check
        own_tokens = list(compress(tokens, np.repeat(plain, accepted).tolist()))
        own_counts = accepted[plain].tolist()
        self._columns.append_tokens(decodes.index[plain], own_tokens, own_counts)
        request_ids = list(compress(decodes.request_ids, plain.tolist()))
        outputs = StepOutputs(request_ids, own_tokens, [], own_counts)
        for index in needs_check.nonzero()[0].tolist():
            request = decodes.requests[index]
            if request.state is State.ENDED:
                continue
            new = tokens[ends[index] - counts[index] : ends[index]]
            num_drafts = 0 if drafts is None else int(drafts[index])
            outputs.deltas.append(self._append(request, new, num_drafts, None, None))
        if not outputs.deltas:
            self._batch.refresh_stops()
        return outputs

    def _needs_check(
        self, step: InFlightStep, tokens: list[int], accepted: Ints, ends: Ints
    ) -> Bools:
        """Return the rows to read singly: at their end, stopped, left, or with wrong counts."""
        columns = self._columns
        decodes = step.decodes
        index = decodes.index
        max_accepted: Ints | int = 1
        if step.num_draft_tokens is not None:
            max_accepted = 1 + step.num_draft_tokens
        known = columns.known[index] + accepted
        needs_check: Bools = known > columns.last_cached_position[index]
        needs_check |= (accepted < 1) | (accepted > max_accepted)
        stops = self._batch.stops
        stopping = [i for i, token in enumerate(tokens) if token in stops]
        needs_check[np.searchsorted(ends, stopping, side="right")] = True
        if decodes.departures != self._batch.departures:
            needs_check |= ~np.array(self._still_owned(decodes), np.bool_)
        return needs_check

    def _read_one_by_one(self, step: InFlightStep, result: StepResult) -> list[RequestDelta]:
        """Read a step with failures, log-probabilities, pooling outputs or invalid tokens."""
        plan = step.plan
        deltas = []
        num_decodes = len(plan.decode_rows)
        samples = (*range(num_decodes), *(num_decodes + i for i in plan.samples))
        new_tokens = dict(zip(samples, result.by_row(), strict=True))
        drafts = [0] * num_decodes
        if step.num_draft_tokens is not None:
            drafts = step.num_draft_tokens.tolist()
        rows = (*plan.decode_rows, *plan.rows)
        # Decode rows compute no prompt tokens.
        starts = (*(None for _ in plan.decode_rows), *plan.starts)
        entries = zip(step.requests, rows, starts, strict=True)
        for index, (request, row, start) in enumerate(entries):
            if request.state is State.ENDED or request.invalid_through_step >= plan.step:
                continue
            error = result.errors.get(row)
            new = new_tokens.get(index)
            prompt = None
            if start is not None:
                prompt = _undelivered(request, start, result.prompt_logprobs.get(row))
            if error is not None:
                deltas.append(self._life.fail(request, error))
            elif row in result.pooled:
                self._life.end(request)
                deltas.append(request.delta(finish_reason="stop", pooled=result.pooled[row]))
            elif new is not None:
                num_drafts = drafts[index] if index < num_decodes else 0
                logprobs = result.logprobs.get(row)
                deltas.append(self._append(request, new, num_drafts, logprobs, prompt))
            elif prompt:
                deltas.append(request.delta(prompt_logprobs=prompt))
        return deltas

    def _append(
        self,
        request: Request,
        new: list[int],
        num_draft_tokens: int,
        logprobs: list[Logprobs] | None,
        prompt: list[Logprobs] | None,
        *,
        in_columns: bool = False,
    ) -> RequestDelta:
        """Append the new tokens of one request, and end it if they end it.

        `in_columns`: the columns have them already.
        """
        limit = 1 + num_draft_tokens
        if not 1 <= len(new) <= limit:
            message = f"the worker returned {len(new)} tokens where 1 to {limit} were planned."
            return self._life.fail(request, message)
        count, reason, stop = request.append_tokens(new, in_columns=in_columns)
        if reason is not None:
            self._life.end(request)
        return request.delta(
            token_ids=new[:count],
            finish_reason=reason,
            stop_reason=stop,
            logprobs=None if logprobs is None else logprobs[:count],
            prompt_logprobs=prompt,
        )


def _are_possible(counts: list[int], drafts: list[int]) -> bool:
    """Return whether each row may have that many accepted tokens.

    The bounds usually decide without comparing every row.
    """
    distinct = set(counts)
    if min(distinct) < 1:
        return False
    return max(distinct) <= 1 + min(set(drafts)) or max(map(sub, counts, drafts)) <= 1


def _undelivered(
    request: Request, start: int, entries: list[Logprobs] | None
) -> list[Logprobs] | None:
    """Return prompt log-probabilities without those delivered before a
    preemption.
    """
    if entries is None:
        return None
    first = start + 1
    fresh = entries[max(0, request.next_prompt_logprob - first) :]
    request.next_prompt_logprob = max(request.next_prompt_logprob, first + len(entries))
    return fresh or None
