"""Reads what a step brought: tokens to requests, ends, and what the client is told. Knows no budget and no blocks."""

from __future__ import annotations

from itertools import compress
from typing import Final

from core.errors import EngineError
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.planning import Flight
from core.scheduler.request import Request, State
from core.step import Logprobs, RequestDelta, StepResult


class ResultReader:
    """Turns results into deltas. What an ended request still receives is surplus and dropped."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life

    def read(self, flight: Flight, result: StepResult) -> list[RequestDelta]:
        """Return what became known of every request in the step."""
        requests = flight.requests
        sampled = requests if len(flight.samples) == len(requests) else [requests[i] for i in flight.samples]
        if len(sampled) != len(result.tokens):
            raise EngineError(
                f"the result of step {flight.step} holds tokens of {len(result.tokens)} rows; "
                f"{len(sampled)} rows were to sample."
            )
        rare = result.errors or result.logprobs or result.prompt_logprobs or self._life.extensions.drafts
        if rare or flight.step <= self._life.distrusted:
            return self._read_all(flight, sampled, result)
        return self._read_plain(sampled, result.tokens)

    def _read_plain(self, sampled: list[Request], tokens: list[list[int]]) -> list[RequestDelta]:
        """The usual step: one token each, nothing else. Kept free of everything that is rare."""
        deltas = []
        ended = State.ENDED
        for request, new in zip(sampled, tokens, strict=True):
            if request.state is ended:
                continue
            known = request.tokens
            if len(new) != 1 or new[0] in request.stops or len(known) + 1 >= request.limit:
                deltas.append(self._take(request, new, None, None))
            else:
                known.append(new[0])
                deltas.append(
                    RequestDelta(request_id=request.request_id, token_ids=new, num_cached_tokens=request.num_cached)
                )
        return deltas

    def _read_all(self, flight: Flight, sampled: list[Request], result: StepResult) -> list[RequestDelta]:
        """A step with failures, log-probabilities or tokens that may not hold."""
        deltas = []
        new_tokens = dict(zip((request.request_id for request in sampled), result.tokens, strict=True))
        alive = [r.state is not State.ENDED and r.distrusted < flight.step for r in flight.requests]
        columns = zip(flight.requests, flight.rows, flight.starts, strict=True)
        for request, row, start in compress(columns, alive):
            error = result.errors.get(row)
            prompt = _undelivered(request, start, result.prompt_logprobs.get(row))
            new = new_tokens.get(request.request_id)
            if error is not None:
                deltas.append(self._life.fail(request, error))
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
