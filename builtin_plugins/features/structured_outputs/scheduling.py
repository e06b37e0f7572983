"""The scheduler half: holds requests until their mask is ready, and paces rows with slow masks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from builtin_plugins.executors.api import RemoteError
from builtin_plugins.features.structured_outputs.messages import (
    NAME,
    MaskLate,
    MaskLost,
    MaskMessage,
    MaskReady,
    MaskTiming,
    Outcome,
    PrepareMask,
    StepChanges,
)
from builtin_plugins.output_parsers.api import REASONING_BOUNDS, ReasoningBounds
from core.api import EngineError, RequestFailed
from core.api.execution import StepPlan
from core.api.features import RunningRows

PROMPT_END_TOKENS: Final = 64
"""Number of prompt tokens in which the end of reasoning is searched."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[MaskMessage]).decode
_decode_bounds = msgspec.msgpack.Decoder(ReasoningBounds).decode
_NEVER: Final = -1
MAX_LOST: Final = 8
"""Grammar processes that may die at one token of a request before it fails."""
MAX_LOST_S: Final = 120.0
"""Time without a mask after which a request fails, if what is killed is the fork server."""


@dataclass(slots=True)
class _ConstrainedRequest:
    """A constrained request from its first admission attempt to its end."""

    request: Any
    length: int = _NEVER
    """Number of tokens for which its mask was requested."""
    ready: set[int] = field(default_factory=set)
    """Ranks that have this mask."""
    slow: dict[int, int] = field(default_factory=dict)
    """Ranks with slow masks, and the number of tokens for which each has one."""
    lost_pids: list[int] = field(default_factory=list)
    """Grammar processes that died at `lost_at` tokens; 0 for one that had not started."""
    lost_at: int = _NEVER
    lost_s: float = 0.0
    """Time of the first loss at `lost_at` tokens."""
    since_s: float = field(default_factory=time.monotonic)
    outcome: Outcome = field(default_factory=Outcome)
    """Results so far, for the admission half."""
    fault: EngineError | None = None

    def record(self, **facts: Any) -> None:
        """Update the outcome."""
        self.outcome = msgspec.structs.replace(self.outcome, **facts)


class MaskScheduler:
    """Holds constrained requests. Costs nothing for unconstrained rows and masks in time."""

    name = NAME

    def __init__(self, num_ranks: int) -> None:
        """`num_ranks`: number of ranks that sample and make masks."""
        self._num_ranks = num_ranks
        self._scheduler: Any = None
        self._requests: dict[str, _ConstrainedRequest] = {}
        self._slow: dict[str, _ConstrainedRequest] = {}
        self._rows: set[int] = set()
        self._soon: list[PrepareMask] = []
        self._gone: list[str] = []

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler that is woken."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Return whether every rank has the request's mask. Raises the request's failure."""
        params = request.sampling.structured_outputs
        if params is None:
            return True
        known = self._requests.get(request.request_id)
        if known is None:
            known = _ConstrainedRequest(request)
            self._requests[request.request_id] = known
        if known.fault is not None:
            raise RequestFailed(str(known.fault)) from known.fault
        if known.length != request.num_tokens:
            known.length = request.num_tokens
            known.ready.clear()
            self._soon.append(_preparation(request, params))
        return len(known.ready) == self._num_ranks

    def finished(self, request: Any) -> bool:
        """Remove a request here and on the workers."""
        known = self._requests.pop(request.request_id, None)
        if known is not None:
            self._slow.pop(request.request_id, None)
            self._gone.append(request.request_id)
            request.feature_outputs[NAME] = _encode(known.outcome)
        return False

    def pending(self) -> bool:
        """Return whether the workers need a message."""
        return bool(self._soon or self._gone)

    def planned(self, plan: StepPlan) -> bytes | None:
        """Return the changes of constrained rows in a step, if any."""
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
        changes = StepChanges(sorted(left), new, self._soon, self._gone)
        self._soon = []
        self._gone = []
        return _encode(changes)

    # --- requests with slow masks

    def is_active(self) -> bool:
        """Return whether there are any."""
        return bool(self._slow)

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Return 0 tokens for slow rows until their mask is ready, then one token."""
        limits: dict[int, int] = {}
        decoding = frozenset(rows.rows.tolist())
        for known in self._slow.values():
            row = known.request.row
            if row in decoding:
                length = rows.num_tokens[row]
                is_settled = rows.planned[row] + 1 == length and not rows.num_unverified[row]
                limits[row] = int(is_settled and min(known.slow.values()) >= length)
        return limits

    def result(self, payload: bytes) -> None:
        """Handle a rank's messages."""
        for message in _decode(payload):
            known = self._requests.get(message.request_id)
            if known is not None:
                self._on_message(message, known)

    def _on_message(self, message: MaskMessage, known: _ConstrainedRequest) -> None:
        request_id = message.request_id
        if isinstance(message, MaskReady):
            self._on_ready(message, known)
        elif isinstance(message, MaskTiming):
            if message.is_slow:
                known.slow[message.rank] = _NEVER
                self._slow[request_id] = known
            elif known.slow.pop(message.rank, None) is not None and not known.slow:
                self._slow.pop(request_id, None)
        elif isinstance(message, MaskLate):
            known.record(num_late=known.outcome.num_late + 1)
            self._recompute(known)
        elif isinstance(message, MaskLost):
            self._on_lost(message, known)
        else:
            self._fail(known, message.fault, message.budget)

    def _on_lost(self, message: MaskLost, known: _ConstrainedRequest) -> None:
        """Rebuild the mask from the request's tokens, unless process after process dies."""
        if known.lost_at != known.request.num_tokens:
            known.lost_at = known.request.num_tokens
            known.lost_s = time.monotonic()
            known.lost_pids.clear()
        if message.is_killed:
            if time.monotonic() - known.lost_s > MAX_LOST_S:
                text = "structured_outputs: the fork server is killed again and again; retry later."
                self._fail(known, RemoteError("QueueFull", text))
                return
        elif message.pid == 0 or message.pid not in known.lost_pids:  # steps may report it twice
            known.lost_pids.append(message.pid)
        if len(known.lost_pids) > MAX_LOST:
            self._fail(known, message.fault)
            return
        known.slow.pop(message.rank, None)
        if not known.slow:
            self._slow.pop(message.request_id, None)
        self._recompute(known)
        self._scheduler.wake(message.request_id)

    def _fail(self, known: _ConstrainedRequest, fault: RemoteError, budget: str = "") -> None:
        if known.fault is None:
            known.fault = fault.error()
            known.record(fault=fault, budget=budget)
        # No mask will end its pause. Its next step reports again and is then recomputed.
        self._slow.pop(known.request.request_id, None)
        self._recompute(known)
        self._scheduler.wake(known.request.request_id)

    def _on_ready(self, message: MaskReady, known: _ConstrainedRequest) -> None:
        known.record(compile_s=known.outcome.compile_s + message.compile_s)
        if message.rank in known.slow:
            known.slow[message.rank] = message.length
        if message.length != known.length:
            return
        known.ready.add(message.rank)
        if len(known.ready) == self._num_ranks:
            if not known.outcome.wait_s:
                known.record(wait_s=time.monotonic() - known.since_s)
            self._scheduler.wake(message.request_id)

    def _recompute(self, known: _ConstrainedRequest) -> None:
        """Drop the tokens that were sampled without a mask: the request restarts before them."""
        known.length = _NEVER
        if known.request.row >= 0:
            self._scheduler.recompute(known.request.request_id, known.request.num_tokens - 1)


def _preparation(request: Any, params: Any) -> PrepareMask:
    tokens = list(map(int, request.tokens))
    prompt_len = request.prompt_len
    stops = [*request.source.eos_token_ids, *request.sampling.stop_token_ids]
    prompt_end = tokens[max(0, prompt_len - PROMPT_END_TOKENS) : prompt_len]
    output = tokens[prompt_len:]
    sent = request.features.get(REASONING_BOUNDS)
    bounds = None if sent is None else _decode_bounds(sent)
    return PrepareMask(request.request_id, params, len(tokens), prompt_end, output, stops, bounds)
