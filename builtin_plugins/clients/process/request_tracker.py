"""Open requests of the engine with their generated tokens, and the search for a request that kills
it.

Knows no process and no clock. After an engine death it decides which requests resume, from which
token, and which fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

from core.api.execution import EngineRequest, RequestDelta, StepOutputs

MAX_CRASHES: Final = 2
"""Crashes at the same token count after which a request is not retried."""
MAX_KILLS: Final = 5
"""The same for deaths that may be external and hit several probes by chance."""
MAX_WAITING_CRASHES: Final = 2
"""Crashes in a row during which a request waited for its first or next token, after which it is
probed alone: it may kill the engine before a step computes it (by its adapter or its constraint).
"""
MAX_SHARED_CRASHES: Final = 3
"""Crashes while it was computed, whatever tokens it got between them, after which a request is
probed for more than one token: it may kill the engine some tokens later.
"""
LONG_PROBE: Final = 16
"""Tokens of the first such probe; each later one is twice as long."""
LOST_TOKENS: Final = 16
"""Tokens before a crash that may be lost, so that the same token count can look different."""


class DeathCause(IntEnum):
    """Cause of an engine death, which decides which requests are suspected."""

    KILLED = 0
    """Probably external: suspects a request that ran alone, or that crashes a second time at the
    same token count.
    """
    UNCLEAR = 1
    """External or caused by a request: all running requests are probed one by one."""
    FAULT = 2
    """Caused by a request: suspects all running requests."""


@dataclass(slots=True)
class OpenRequest:
    """One open request."""

    request: EngineRequest
    token_ids: list[int] = field(default_factory=list)
    """Generated tokens, over all engine restarts."""
    num_prompt_logprobs: int = 0
    """Prompt positions with delivered log-probabilities."""
    repeated: int = 0
    """Delivered prompt log-probabilities that the restarted engine sends again."""
    sent: bool = True
    """Whether the engine has it."""
    started: bool = False
    """Whether the engine is computing it."""
    crash_count: int = 0
    crashed_at: int = -1
    """Number of tokens at the last crash."""
    waiting_crashes: int = 0
    """Crashes at `waited_at` tokens during which it was not computed."""
    waited_at: int = -1
    shared_crashes: int = 0
    """Crashes, other than kills from outside, while it was computed."""
    suspected: bool = False
    probe_tokens: int = 1
    """Tokens after the last crash that clear it."""
    is_first_kill: bool = False
    """Whether all that speaks against it is one kill from outside while it ran alone."""
    failed: bool = False

    @property
    def is_suspect(self) -> bool:
        """Return whether it got too few tokens since the crash that it was part of."""
        return self.suspected and len(self.token_ids) < self.crashed_at + self.probe_tokens

    def crash(self, cause: DeathCause, *, alone: bool) -> None:
        """Record an engine death while it was computed."""
        num_tokens = len(self.token_ids)
        num_new = num_tokens - self.crashed_at
        if num_new > (LOST_TOKENS if cause is DeathCause.FAULT else 0) and not self.is_suspect:
            self.crash_count = 0
        is_external = cause is DeathCause.KILLED
        may_be_chance = is_external or (cause is DeathCause.UNCLEAR and num_new > 0)
        self.suspected = alone or not is_external or num_new == 0
        self.shared_crashes += not is_external
        num_probes = self.shared_crashes - MAX_SHARED_CRASHES
        self.probe_tokens = LONG_PROBE << num_probes if num_probes >= 0 else 1
        self.crashed_at = num_tokens
        self.crash_count += alone or cause is DeathCause.FAULT
        self.is_first_kill = is_external and num_new > 0 and self.crash_count <= 1
        self.failed = alone and self.crash_count >= (MAX_KILLS if may_be_chance else MAX_CRASHES)


class RequestTracker:
    """Tracks open requests by id."""

    def __init__(self) -> None:
        self._requests: dict[str, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str | None) -> bool:
        return request_id in self._requests

    def open(self, requests: Iterable[EngineRequest]) -> None:
        """Add requests."""
        for request in requests:
            self._requests[request.request_id] = OpenRequest(request)

    def close(self, request_id: str) -> bool:
        """Remove a request; False if it is unknown."""
        return self._requests.pop(request_id, None) is not None

    def release(self, request_ids: Iterable[str]) -> list[OpenRequest]:
        """Remove requests and return them, for another engine."""
        return [self._requests.pop(each) for each in request_ids if each in self._requests]

    def adopt(self, entry: OpenRequest) -> None:
        """Add a request of another engine."""
        self._requests[entry.request.request_id] = entry

    def start(self, request_ids: Iterable[str]) -> None:
        """Mark requests that the next step computes for the first time."""
        for request_id in request_ids:
            if request_id in self._requests:
                self._requests[request_id].started = True

    def record(self, outputs: StepOutputs) -> StepOutputs:
        """Record the outputs of a step; return them without duplicates and without closed
        requests.
        """
        entries = [
            entry
            for request_id in outputs.request_ids
            if (entry := self._requests.get(request_id)) is not None
        ]
        if outputs.counts or len(entries) < len(outputs.request_ids):
            return StepOutputs(deltas=self._record(outputs))
        for entry, token in zip(entries, outputs.token_ids, strict=True):
            entry.token_ids.append(token)
            entry.started = True
        return StepOutputs(outputs.request_ids, outputs.token_ids, self._record(outputs.deltas))

    def _record(self, deltas: Iterable[RequestDelta]) -> list[RequestDelta]:
        recorded = []
        for delta in deltas:
            entry = self._requests.get(delta.request_id)
            if entry is None:
                continue
            if delta.token_ids:
                entry.token_ids += delta.token_ids
                entry.started = True
            if delta.prompt_logprobs:
                delta = _without_repeated(entry, delta)
            if delta.finish_reason is not None:
                del self._requests[delta.request_id]
            recorded.append(delta)
        return recorded

    def mark_removed(self, request_id: str) -> None:
        """Mark a request as removed from the engine for now."""
        if request_id in self._requests:
            self._requests[request_id].sent = self._requests[request_id].started = False

    def on_engine_death(self, cause: DeathCause) -> tuple[list[str], list[str]]:
        """Handle an engine death; return the requests to probe alone (least suspicious first) and
        the others.

        A request that ran alone gets a strike; a fault gives every running request one. Strikes
        count at one token count. A request with enough strikes fails if it was alone at the last
        one.
        """
        sent = [entry for entry in self._requests.values() if entry.sent]
        running = [
            entry for entry in sent if entry.started
        ] or sent  # outputs of a first step may be lost
        alone = len(running) == 1
        for entry in running:
            entry.crash(cause, alone=alone)
        if cause is not DeathCause.KILLED:
            _suspect_waiting(entry for entry in sent if not entry.started)
        for entry in sent:
            entry.sent = entry.started = False
        probes = {
            rid: entry.crash_count for rid, entry in self._requests.items() if entry.is_suspect
        }
        return sorted(probes, key=probes.__getitem__), [
            rid for rid in self._requests if rid not in probes
        ]

    def is_suspect(self, request_id: str) -> bool:
        """Return whether a request may be the cause of the last engine death."""
        return request_id in self._requests and self._requests[request_id].is_suspect

    def may_move(self, request_id: str) -> bool:
        """Return whether another engine may have a request after the last engine death."""
        entry = self._requests.get(request_id)
        return entry is not None and (entry.is_first_kill or not entry.is_suspect)

    def has_suspects(self) -> bool:
        """Return whether a request may be the cause of the last engine death."""
        return any(entry.is_suspect for entry in self._requests.values())

    def failed_requests(self) -> list[RequestDelta]:
        """Return, once, the final outputs of the requests that are not retried."""
        failed = {rid: entry.crash_count for rid, entry in self._requests.items() if entry.failed}
        for request_id in failed:
            del self._requests[request_id]
        message = (
            "the engine died {} times while it computed this request, so it is not tried again ({})"
        )
        return [
            RequestDelta(
                request_id=rid, finish_reason="error", error=message.format(crash_count, rid)
            )
            for rid, crash_count in failed.items()
        ]

    def begun_answers(self, message: str) -> list[RequestDelta]:
        """Return, once, the final outputs of the requests with tokens of other weights."""
        begun = [
            rid
            for rid, entry in self._requests.items()
            if entry.token_ids or entry.num_prompt_logprobs
        ]
        for request_id in begun:
            del self._requests[request_id]
        return [RequestDelta(request_id=rid, finish_reason="error", error=message) for rid in begun]

    def resumed_request(self, request_id: str) -> EngineRequest | None:
        """Return the request to resubmit, with its generated tokens. None if it has ended."""
        entry = self._requests.get(request_id)
        if entry is None:
            return None
        entry.sent = True
        entry.repeated = entry.num_prompt_logprobs
        sampling = entry.request.sampling
        if entry.token_ids and sampling.prompt_logprobs is not None:
            sampling = sampling.clone(prompt_logprobs=None)  # complete before the first token
        return msgspec.structs.replace(
            entry.request, sampling=sampling, output_token_ids=list(entry.token_ids)
        )


def _suspect_waiting(entries: Iterable[OpenRequest]) -> None:
    """Count a crash of requests that the engine had and did not compute."""
    for entry in entries:
        tokens = len(entry.token_ids)
        entry.waiting_crashes = 1 + (entry.waiting_crashes if entry.waited_at == tokens else 0)
        entry.waited_at = tokens
        if entry.waiting_crashes >= MAX_WAITING_CRASHES:
            entry.suspected = True
            entry.crashed_at = tokens


def _without_repeated(entry: OpenRequest, delta: RequestDelta) -> RequestDelta:
    sent = delta.prompt_logprobs or []
    known = min(entry.repeated, len(sent))
    entry.repeated -= known
    entry.num_prompt_logprobs += len(sent) - known
    return msgspec.structs.replace(delta, prompt_logprobs=sent[known:] or None) if known else delta
