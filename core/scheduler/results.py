"""Reads what a step brought: tokens to requests, ends, and what the client is told. Knows no budget and no blocks."""

from __future__ import annotations

from typing import Final

from core.errors import EngineError
from core.scheduler.cohort import Members
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.planning import Flight
from core.scheduler.request import Request, State
from core.step import Logprobs, RequestDelta, StepNews, StepResult


class ResultReader:
    """Turns results into news. What an ended request still receives is surplus and dropped."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life

    def read(self, flight: Flight, result: StepResult) -> StepNews:
        """Return what became known of every request in the step."""
        plan, steady, tokens = flight.plan, flight.steady, result.tokens
        num_steady = len(steady.rows)
        num_rows = num_steady + len(plan.samples)
        if len(result.accepted or tokens) != num_rows:
            raise EngineError(
                f"the result of step {plan.step} holds tokens of {len(result.accepted or tokens)} rows; "
                f"{num_rows} rows were to sample."
            )
        rare = result.errors or result.logprobs or result.prompt_logprobs or result.accepted or result.pooled
        if rare or plan.step <= self._life.distrusted:
            return StepNews([], [], self._read_all(flight, result))
        if num_rows == num_steady:
            return self._read_steady(steady, tokens)
        news = self._read_steady(steady, tokens[:num_steady])
        for index, token in zip(plan.samples, tokens[num_steady:], strict=True):
            request = flight.others[index]
            if request.state is not State.ENDED:
                news.deltas.append(self._take(request, [token], None, None))
        return news

    def _read_steady(self, steady: Members, tokens: list[int]) -> StepNews:
        """The usual step: one token each, nothing else. Kept free of everything that is rare."""
        cohort = self._life.batch.cohort
        if steady.departures == cohort.departures and cohort.stops.isdisjoint(tokens):
            cohort.take(steady, tokens)
            return StepNews(steady.request_ids, tokens, [])
        cohort.hand_out()
        news = StepNews([], [], [])
        for request, token in zip(steady.requests, tokens, strict=True):
            if request.state is State.ENDED:
                continue
            if token in request.stops:
                news.deltas.append(self._take(request, [token], None, None))
            else:
                request.tokens.append(token)
                news.request_ids.append(request.request_id)
                news.token_ids.append(token)
        if not news.deltas and steady.departures == cohort.departures:
            cohort.narrow_stops()
        return news

    def _read_all(self, flight: Flight, result: StepResult) -> list[RequestDelta]:
        """A step with failures, log-probabilities or tokens that may not hold."""
        self._life.batch.cohort.hand_out()
        plan, deltas = flight.plan, []
        num_steady = len(plan.steady)
        samples = (*range(num_steady), *(num_steady + index for index in plan.samples))
        new_tokens = dict(zip(samples, result.by_row(), strict=True))
        # A row that goes on where it was computes no token of its prompt.
        starts = (*(None for _ in plan.steady), *plan.starts)
        columns = zip(flight.requests, (*plan.steady, *plan.rows), starts, strict=True)
        for index, (request, row, start) in enumerate(columns):
            if request.state is State.ENDED or request.distrusted >= plan.step:
                continue
            error, new = result.errors.get(row), new_tokens.get(index)
            prompt = None if start is None else _undelivered(request, start, result.prompt_logprobs.get(row))
            if error is not None:
                deltas.append(self._life.fail(request, error))
            elif row in result.pooled:
                self._life.end(request)
                deltas.append(request.say(finish_reason="stop", pooled=result.pooled[row]))
            elif new is not None:
                deltas.append(self._take(request, new, result.logprobs.get(row), prompt))
            elif prompt:
                deltas.append(request.say(prompt_logprobs=prompt))
        return deltas

    def _take(
        self, request: Request, new: list[int], logprobs: list[Logprobs] | None, prompt: list[Logprobs] | None
    ) -> RequestDelta:
        """Append the tokens of one request and end it where they do."""
        if not 1 <= len(new) <= 1 + request.extra:
            return self._life.fail(
                request, f"the worker returned {len(new)} tokens where 1 to {1 + request.extra} were planned."
            )
        count, reason, stop = request.take(new)
        if reason is not None:
            self._life.end(request)
        elif request.extra:
            request.extra = 0
            request.total = len(request.tokens)
            if request.state is State.RUNNING:
                request.planned = request.total - 1
        held = None if logprobs is None else logprobs[:count]
        return request.say(
            token_ids=new[:count], finish_reason=reason, stop_reason=stop, logprobs=held, prompt_logprobs=prompt
        )


def _undelivered(request: Request, start: int, entries: list[Logprobs] | None) -> list[Logprobs] | None:
    """Drop the prompt positions that were delivered before a preemption; remember the others as delivered."""
    if entries is None:
        return None
    first, after = start + 1, start + 1 + len(entries)
    fresh = entries[max(0, request.prompt_done - first) :]
    request.prompt_done = max(request.prompt_done, after)
    return fresh or None
