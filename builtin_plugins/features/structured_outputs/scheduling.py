"""The scheduler half: parks requests until their mask is there, and holds back those whose masks
come slowly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from builtin_plugins.features.structured_outputs.news import (
    NAME,
    Late,
    News,
    Outcome,
    Pace,
    Prepare,
    Ready,
    Told,
)
from core.api import EngineError, RequestFailed, StepPlan
from core.contracts.scheduling import RunningRows

PROMPT_END_TOKENS: Final = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Told]).decode
_NEVER: Final = -1


@dataclass(slots=True)
class _Life:
    """A constrained request from its first look to its end."""

    request: Any
    length: int = _NEVER
    """Tokens behind which its mask was asked for."""
    ready: set[int] = field(default_factory=set)
    """Ranks that have this mask."""
    slow: dict[int, int] = field(default_factory=dict)
    """Ranks whose masks come slowly, each with the tokens behind which it has one."""
    since_s: float = field(default_factory=time.monotonic)
    outcome: Outcome = field(default_factory=Outcome)
    """Of its masks so far."""
    fault: EngineError | None = None

    def note(self, **facts: Any) -> None:
        """Take down what the edge will be told."""
        self.outcome = msgspec.structs.replace(self.outcome, **facts)


class Gate:
    """Asks nothing of unconstrained requests; looks at no running one whose masks come in time."""

    name = NAME

    def __init__(self, num_ranks: int) -> None:
        """`num_ranks` hold the layers that sample, and make masks."""
        self._num_ranks = num_ranks
        self._scheduler: Any = None
        self._lives: dict[str, _Life] = {}
        self._slow: dict[str, _Life] = {}
        self._rows: set[int] = set()
        self._soon: list[Prepare] = []
        self._gone: list[str] = []

    def attach(self, scheduler: Any) -> None:
        """Remember whom to wake."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Let it start once every rank has its mask. Raises what there will be none for."""
        params = request.sampling.structured_outputs
        if params is None:
            return True
        life = self._lives.get(request.request_id)
        if life is None:
            life = self._lives[request.request_id] = _Life(request)
        if life.fault is not None:
            raise RequestFailed(str(life.fault)) from life.fault
        if life.length != request.num_tokens:
            life.length = request.num_tokens
            life.ready.clear()
            self._soon.append(_preparation(request, params))
        return len(life.ready) == self._num_ranks

    def finished(self, request: Any) -> bool:
        """Let the workers forget it."""
        life = self._lives.pop(request.request_id, None)
        if life is not None:
            self._slow.pop(request.request_id, None)
            self._gone.append(request.request_id)
            request.news[NAME] = _encode(life.outcome)
        return False

    def pending(self) -> bool:
        """Say whether workers have to begin with something, or can stop."""
        return bool(self._soon or self._gone)

    def planned(self, plan: StepPlan) -> bytes | None:
        """Say which rows are constrained from this step on, which no longer are, and who waits for
        a mask.
        """
        if not (plan.new or plan.ended or self._soon or self._gone):
            return None
        left = self._rows.intersection((*plan.ended, *(new.row for new in plan.new)))
        new = [
            (new.row, new.request_id)
            for new in plan.new
            if new.sampling.structured_outputs is not None
        ]
        if not (left or new or self._soon or self._gone):
            return None
        self._rows = (self._rows - left) | {row for row, _ in new}
        soon = self._soon
        gone = self._gone
        self._soon = []
        self._gone = []
        return _encode(News(sorted(left), new, soon, gone))

    # --- those whose masks come slowly

    def steers(self) -> bool:
        """Say whether there are any."""
        return bool(self._slow)

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Let a slow row sit steps out until its mask is there; then it computes one token."""
        most: dict[int, int] = {}
        decoding = frozenset(rows.rows.tolist())
        for life in self._slow.values():
            row = life.request.row
            if row in decoding:
                known = rows.num_tokens[row]
                is_settled = rows.planned[row] + 1 == known and not rows.in_flight[row]
                most[row] = int(is_settled and min(life.slow.values()) >= known)
        return most

    def result(self, payload: bytes) -> None:
        """Take what a rank says of masks."""
        for told in _decode(payload):
            life = self._lives.get(told.request_id)
            if life is not None:
                self._hear(told, life)

    def _hear(self, told: Told, life: _Life) -> None:
        request_id = told.request_id
        if isinstance(told, Ready):
            life.note(compile_s=life.outcome.compile_s + told.compile_s)
            if told.rank in life.slow:
                life.slow[told.rank] = told.length
            if told.length == life.length:
                life.ready.add(told.rank)
                if len(life.ready) == self._num_ranks:
                    if not life.outcome.wait_s:
                        life.note(wait_s=time.monotonic() - life.since_s)
                    self._scheduler.wake(request_id)
        elif isinstance(told, Pace):
            if told.is_slow:
                life.slow[told.rank] = _NEVER
                self._slow[request_id] = life
            elif life.slow.pop(told.rank, None) is not None and not life.slow:
                self._slow.pop(request_id, None)
        elif isinstance(told, Late):
            life.note(num_late=life.outcome.num_late + 1)
            self._take_back(life)
        else:
            if life.fault is None:
                life.fault = told.fault.error()
                life.note(fault=told.fault, budget=told.budget)
            # There will be no mask that a row could sit steps out for. In its next step it is told
            # of again, and taken back.
            self._slow.pop(request_id, None)
            self._take_back(life)
            self._scheduler.wake(request_id)

    def _take_back(self, life: _Life) -> None:
        """Drop the tokens that were sampled without a mask: the request starts again behind those
        that were not.
        """
        life.length = _NEVER
        if life.request.row >= 0:
            self._scheduler.recompute(life.request.request_id, life.request.num_tokens - 1)


def _preparation(request: Any, params: Any) -> Prepare:
    tokens = list(map(int, request.tokens))
    prompt_len = request.prompt_len
    stops = [*request.source.eos_token_ids, *request.sampling.stop_token_ids]
    end = tokens[max(0, prompt_len - PROMPT_END_TOKENS) : prompt_len]
    return Prepare(request.request_id, params, len(tokens), end, tokens[prompt_len:], stops)
