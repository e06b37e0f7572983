"""Reads what a step brought: tokens to requests, ends, and what the client is told.

Knows no budget and no blocks.
"""

from __future__ import annotations

from itertools import compress
from operator import sub
from typing import Final

import numpy as np

from core.errors import EngineError
from core.scheduler.batch import Members
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.planning import Flight
from core.scheduler.request import Request, State
from core.step import Logprobs, RequestDelta, StepNews, StepResult


class ResultReader:
    """Turns results into news. What an ended request still receives is surplus and dropped."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._batch: Final = life.batch
        self._columns: Final = life.batch.columns

    def read(self, flight: Flight, result: StepResult) -> StepNews:
        """Return what became known of every request in the step."""
        plan = flight.plan
        steady = flight.steady
        tokens = result.tokens
        num_steady = len(steady.rows)
        is_whole = steady.departures == self._batch.departures
        num_rows = num_steady + len(plan.samples)
        if len(result.accepted or tokens) != num_rows:
            raise EngineError(
                f"the result of step {plan.step} holds tokens of {len(result.accepted or tokens)} "
                "rows; "
                f"{num_rows} rows were to sample."
            )
        if flight.guesses is not None:
            self._columns.guessing.popleft()
        rare = result.errors or result.logprobs or result.prompt_logprobs or result.pooled
        if rare or plan.step <= self._life.distrusted:
            return StepNews([], [], self._read_all(flight, result))
        counts = result.accepted
        others = []
        rest = []
        if plan.samples:
            counts, others = counts[:num_steady], counts[num_steady:] or [1] * len(plan.samples)
            split = len(tokens) - sum(others)
            tokens, rest = tokens[:split], tokens[split:]
        if is_whole and not flight.ends and self._batch.stops.isdisjoint(tokens):
            news = self._read_steady(flight, tokens, counts)
        elif counts:
            news = self._read_guessed(flight, tokens, counts)
        else:
            news = self._read_mixed(flight, tokens)
        for index, count in zip(plan.samples, others, strict=True):
            request = flight.others[index]
            own = rest[:count]
            rest = rest[count:]
            if request.state is not State.ENDED:
                news.deltas.append(self._take(request, own, 0, None, None))
        return news

    def _still(self, steady: Members) -> list[bool]:
        return [
            request.row == row for request, row in zip(steady.requests, steady.rows, strict=True)
        ]

    def _read_steady(self, flight: Flight, tokens: list[int], counts: list[int]) -> StepNews:
        """The usual step: nobody ends, nobody has left. Kept free of everything that is rare."""
        steady = flight.steady
        if counts and not _possible(counts, flight.plan.guesses or [0] * len(counts)):
            return self._read_guessed(flight, tokens, counts)
        self._columns.say(steady.index, tokens, counts)
        return StepNews(steady.request_ids, tokens, [], counts)

    def _read_mixed(self, flight: Flight, tokens: list[int]) -> StepNews:
        """A step in which somebody may end or has left: those are looked at one by one, all others
        taken together.
        """
        steady = flight.steady
        stops = self._batch.stops
        places = set(flight.ends)
        if not stops.isdisjoint(tokens):
            places.update(place for place, token in enumerate(tokens) if token in stops)
        if steady.departures != self._batch.departures:
            places.update(place for place, same in enumerate(self._still(steady)) if not same)
        news = StepNews(steady.request_ids.copy(), tokens.copy(), [])
        # Those who are looked at have theirs by then, and what is written for who has left means
        # nothing.
        self._columns.say(steady.index, tokens, [])
        order = sorted(places)
        for place in reversed(order):
            del news.request_ids[place], news.token_ids[place]
        for place in order:
            request = steady.requests[place]
            if request.state is not State.ENDED:
                news.deltas.append(
                    self._take(
                        request, tokens[place : place + 1], 0, None, None, said=request.row >= 0
                    )
                )
        if not news.deltas:
            self._batch.narrow_stops()
        return news

    def _read_guessed(self, flight: Flight, tokens: list[int], counts: list[int]) -> StepNews:
        """Likewise, where some tokens were guessed."""
        steady = flight.steady
        columns = self._columns
        index = steady.index
        accepted = np.fromiter(counts, np.int64, len(counts))
        particular = columns.known[index] + accepted > columns.last[index]
        particular |= (accepted < 1) | (
            accepted > (1 if flight.guesses is None else 1 + flight.guesses)
        )
        behind = np.cumsum(accepted)
        stopping = [place for place, token in enumerate(tokens) if token in self._batch.stops]
        particular[np.searchsorted(behind, stopping, side="right")] = True
        if steady.departures != self._batch.departures:
            particular |= ~np.array(self._still(steady), np.bool_)
        plain = ~particular
        own = list(compress(tokens, np.repeat(plain, accepted).tolist()))
        held = accepted[plain].tolist()
        columns.say(index[plain], own, held)
        news = StepNews(list(compress(steady.request_ids, plain.tolist())), own, [], held)
        for place in particular.nonzero()[0].tolist():
            request = steady.requests[place]
            new = tokens[behind[place] - counts[place] : behind[place]]
            guessed = 0 if flight.guesses is None else int(flight.guesses[place])
            if request.state is not State.ENDED:
                news.deltas.append(self._take(request, new, guessed, None, None))
        if not news.deltas:
            self._batch.narrow_stops()
        return news

    def _read_all(self, flight: Flight, result: StepResult) -> list[RequestDelta]:
        """A step with failures, log-probabilities or tokens that may not hold."""
        plan = flight.plan
        deltas = []
        num_steady = len(plan.steady)
        samples = (*range(num_steady), *(num_steady + index for index in plan.samples))
        new_tokens = dict(zip(samples, result.by_row(), strict=True))
        guesses = [0] * num_steady if flight.guesses is None else flight.guesses.tolist()
        # A row that goes on where it was computes no token of its prompt.
        starts = (*(None for _ in plan.steady), *plan.starts)
        columns = zip(flight.requests, (*plan.steady, *plan.rows), starts, strict=True)
        for index, (request, row, start) in enumerate(columns):
            if request.state is State.ENDED or request.distrusted >= plan.step:
                continue
            error = result.errors.get(row)
            new = new_tokens.get(index)
            prompt = (
                None
                if start is None
                else _undelivered(request, start, result.prompt_logprobs.get(row))
            )
            if error is not None:
                deltas.append(self._life.fail(request, error))
            elif row in result.pooled:
                self._life.end(request)
                deltas.append(request.say(finish_reason="stop", pooled=result.pooled[row]))
            elif new is not None:
                guessed = guesses[index] if index < num_steady else 0
                deltas.append(self._take(request, new, guessed, result.logprobs.get(row), prompt))
            elif prompt:
                deltas.append(request.say(prompt_logprobs=prompt))
        return deltas

    def _take(
        self,
        request: Request,
        new: list[int],
        guessed: int,
        logprobs: list[Logprobs] | None,
        prompt: list[Logprobs] | None,
        *,
        said: bool = False,
    ) -> RequestDelta:
        """Append the tokens of one request, unless the columns were `said` them, and end it where
        they do.
        """
        if not 1 <= len(new) <= 1 + guessed:
            return self._life.fail(
                request,
                f"the worker returned {len(new)} tokens where 1 to {1 + guessed} were planned.",
            )
        count, reason, stop = request.take(new, said=said)
        if reason is not None:
            self._life.end(request)
        held = None if logprobs is None else logprobs[:count]
        return request.say(
            token_ids=new[:count],
            finish_reason=reason,
            stop_reason=stop,
            logprobs=held,
            prompt_logprobs=prompt,
        )


def _possible(counts: list[int], guesses: list[int]) -> bool:
    """Say whether every row may have got so many tokens.

    Mostly the bounds of all tell, and few numbers have to be compared.
    """
    held = set(counts)
    return min(held) >= 1 and (
        max(held) <= 1 + min(set(guesses)) or max(map(sub, counts, guesses)) <= 1
    )


def _undelivered(
    request: Request, start: int, entries: list[Logprobs] | None
) -> list[Logprobs] | None:
    """Drop the prompt positions that were delivered before a preemption; remember the others as
    delivered.
    """
    if entries is None:
        return None
    first = start + 1
    after = start + 1 + len(entries)
    fresh = entries[max(0, request.prompt_done - first) :]
    request.prompt_done = max(request.prompt_done, after)
    return fresh or None
