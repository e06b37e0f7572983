"""What `engine explain` knows: histories of requests in the scheduler, and recent requests.

The scheduler extension reads the clock when a request arrives, starts and ends. Everything else
happens in a call. Both classes remember a bounded number of requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from builtin_plugins.clients.api import previous_engines
from builtin_plugins.routes.common.costs import cost_fields
from builtin_plugins.routes.common.request_ids import id_aliases
from core.api import EngineConfig, InvalidRequest
from core.api.execution import StepPlan
from core.api.telemetry import HttpStats, RequestStats

NAME: Final = "explain"
MAX_SEQUENCES: Final = 1000
"""Largest number of ended sequences that are remembered."""
MAX_REQUESTS: Final = 1000
"""Largest number of ended, and of refused, requests that are remembered."""
LONGEST_REASON: Final = 500
"""Longest remembered reason, in characters: it may repeat a client's text."""


class SequenceReport(msgspec.Struct):
    """State and times of one sequence of a request."""

    request_id: str
    state: str
    """"waiting", "parked", "running" or "ended"."""
    why: str
    """Reason for the state, or progress in it."""
    prompt_tokens: int
    tokens: int
    """Number of prompt and generated tokens."""
    preemptions: int
    """Number of preemptions."""
    queued_s: float
    """Time until the first start, in seconds."""
    computed_s: float
    """Time in the batch, in seconds."""
    displaced_s: float
    """Time outside of the batch after a preemption, in seconds."""
    plugin_s: dict[str, float]
    """Time of each plugin's calls during the sequence's life, for all requests, in seconds."""
    engine: int = 0
    """Rank of the engine."""
    resumed_tokens: int = 0
    """Generated tokens that the sequence arrived with, after the death of an engine."""
    moved_from: list[int] = []
    """Ranks of other engines that had the sequence and died, in order."""


@dataclass(slots=True)
class _SequenceHistory:
    """One sequence; times are those of a monotonic clock."""

    request: Any
    """The scheduler's request, until it has ended."""
    arrived_s: float
    plugin_s: Mapping[str, float]
    """Time of each plugin's calls before the arrival, in seconds."""
    resumed_tokens: int
    """Generated tokens that the request arrived with."""
    was_head: bool = False
    """Whether the sequence has been the first in the queue."""
    spans: list[tuple[float, float | None]] = field(default_factory=list)
    """Times of entering and leaving the batch."""


class RequestHistories:
    """Scheduler extension that records when sequences arrive, start and end."""

    name = NAME

    def __init__(
        self,
        remembered: int = MAX_SEQUENCES,
        clock: Callable[[], float] = time.monotonic,
        plugin_s: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`plugin_s` returns the time of each plugin's calls in this process so far."""
        self._plugin_s = plugin_s
        self._clock = clock
        self._live: dict[str, _SequenceHistory] = {}
        self._ended: deque[SequenceReport] = deque(maxlen=remembered)
        self._scheduler: Any = None

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler."""
        self._scheduler = scheduler

    def arrived(self, request: Any) -> None:
        """Start the history of a request."""
        resumed_tokens = request.num_tokens - request.prompt_len
        self._live[request.request_id] = _SequenceHistory(
            request, self._clock(), self._plugin_s(), resumed_tokens
        )

    def may_start(self, request: Any) -> bool:
        """Record that the request is the head of the queue, and out of the batch."""
        history = self._live[request.request_id]
        history.was_head = True
        self._leave(history)
        return True

    def planned(self, plan: StepPlan) -> None:
        """Record the rows that enter the batch."""
        for new in plan.new:
            history = self._live.get(new.request_id)
            if history is not None:
                history.spans.append((self._clock(), None))

    def finished(self, request: Any) -> bool:
        """Store the report of an ended request."""
        history = self._live.pop(request.request_id)
        self._leave(history)
        self._ended.append(self._report(history, "ended", ""))
        return False

    def call(self, verb: str, data: bytes) -> bytes:
        """Return the reports of all sequences of a request; `data` is an id that clients know."""
        if verb != "request":
            raise InvalidRequest("name", f"{NAME} knows request, not {verb!r}.")
        request_id = data.decode(errors="replace")
        ended = [each for each in self._ended if request_id in id_aliases(each.request_id)]
        live = [
            self._current_report(each)
            for each in self._live.values()
            if request_id in id_aliases(each.request.request_id)
        ]
        return msgspec.json.encode([*ended, *live])

    def _leave(self, history: _SequenceHistory) -> None:
        if history.spans and history.spans[-1][1] is None:
            history.spans[-1] = (history.spans[-1][0], self._clock())

    def _current_report(self, history: _SequenceHistory) -> SequenceReport:
        state = history.request.state.name.lower()
        if state != "running":
            self._leave(history)
        reasons = {
            "waiting": self._why_waiting,
            "parked": self._why_parked,
            "running": self._progress,
        }
        return self._report(history, state, reasons[state](history))

    def _report(self, history: _SequenceHistory, state: str, why: str) -> SequenceReport:
        now_s = self._clock()
        spans = history.spans
        request = history.request
        first_s = spans[0][0] if spans else now_s
        computed_s = sum((now_s if left is None else left) - began for began, left in spans)
        over_s = now_s
        if state == "ended" and spans and spans[-1][1] is not None:
            over_s = spans[-1][1]
        return SequenceReport(
            request_id=request.request_id,
            state=state,
            why=why,
            prompt_tokens=request.prompt_len,
            tokens=request.num_tokens,
            preemptions=request.num_preemptions,
            queued_s=first_s - history.arrived_s,
            computed_s=computed_s,
            displaced_s=over_s - first_s - computed_s,
            plugin_s={
                plugin: took
                for plugin, now in self._plugin_s().items()
                if (took := now - history.plugin_s.get(plugin, 0.0))
            },
            resumed_tokens=history.resumed_tokens,
            moved_from=previous_engines(request.features),
        )

    def _why_waiting(self, history: _SequenceHistory) -> str:
        scheduler = self._scheduler
        request = history.request
        state = request.state
        waiting = [each.request for each in self._live.values() if each.request.state is state]
        before = sum(other.rank < request.rank for other in waiting)
        queue = f"{before} others wait before it; " if before else "it is the next; "
        max_rows = scheduler.limits.max_num_seqs
        if scheduler.num_running >= max_rows:
            return f"{queue}all {max_rows} rows of the batch are in use (--max-num-seqs)"
        if before:
            return queue + "the first of them has no room yet"
        if not history.was_head:
            return queue + "no step has started since it arrived"
        return queue + (
            f"a row is free, but the KV cache has no room for its {request.num_tokens} tokens: "
            f"{100 * scheduler.kv.usage:.0f}% is in use (--kv-cache-memory-bytes), or the step has "
            "no tokens left for it (--max-num-batched-tokens)"
        )

    def _why_parked(self, history: _SequenceHistory) -> str:
        if history.request.sampling.structured_outputs is not None:
            return "a feature holds it; its constraint is probably being compiled"
        extensions = self._scheduler.extension_names
        others = ", ".join(name for name in extensions if name not in (NAME, "memory"))
        return f"a feature holds it until it may start; features here are {others}"

    def _progress(self, history: _SequenceHistory) -> str:
        request = history.request
        if request.num_tokens == request.prompt_len:
            computed = min(request.planned, request.prompt_len)
            return f"{computed} of its {request.prompt_len} prompt tokens are computed"
        return f"{request.num_tokens - request.prompt_len} tokens are generated"


class RecentRequests:
    """Metric sink that remembers recent requests, if `--enable-operator-routes` is set."""

    per_api_server = True

    def __init__(self, config: EngineConfig) -> None:
        self._names_engines = config.parallel.data_parallel_size > 1
        size = MAX_REQUESTS if config.options.get("enable_operator_routes") else 0
        self._requests: deque[RequestStats] = deque(maxlen=size)
        self._refused: deque[HttpStats] = deque(maxlen=size)

    def request(self, stats: RequestStats) -> None:
        """Remember an ended request."""
        self._requests.append(stats)

    def http(self, stats: HttpStats) -> None:
        """Remember a request that was refused or broke off, if it has an id."""
        if (stats.status >= 400 or stats.error) and stats.request_id:
            self._refused.append(replace(stats, error=stats.error[:LONGEST_REASON]))

    def sentences(self, request_id: str) -> Iterator[str]:
        """Yield a sentence for each request with this id, as clients know it."""
        for refused in self._refused:
            if refused.request_id in (request_id, request_id.partition("-")[2]):
                reason = refused.error
                if not reason:
                    reason = "the client left" if refused.status == 499 else "no reason was given"
                path = refused.path or "of an unknown path"
                yield f"{refused.method} {path} ended with status {refused.status}: {reason}"
        for stats in self._requests:
            if request_id in id_aliases(stats.request_id):
                yield _summary(stats, f" in engine {stats.engine}" if self._names_engines else "")


def _summary(stats: RequestStats, where: str) -> str:
    parts = [
        f"{stats.request_id} has ended ({stats.finish_reason}){where} after {stats.e2e_s:.3f} s: "
        f"{stats.prompt_tokens} prompt tokens, {stats.cached_tokens} of them cached, "
        f"{stats.generated_tokens} generated"
    ]
    times = (
        ("queued", stats.queue_s),
        ("reading the prompt", stats.prefill_s),
        ("generating", stats.decode_s),
    )
    parts += [f"{name} {seconds:.3f} s" for name, seconds in times if seconds is not None]
    if stats.queue_s is None:
        parts.append("no step ever computed it")
    parts += _costs(stats.counts)
    return "; ".join(parts)


def _costs(counts: Mapping[str, float]) -> Iterator[str]:
    """Yield what a request cost, with `--request-costs`."""
    cost = cost_fields(counts).get("cost")
    if cost:
        yield (
            f"its steps took {cost['cpu_seconds']:.3f} s of processors for "
            f"{cost['computed_tokens']} positions, and its KV cache "
            f"{cost['kv_byte_seconds'] / 1e6:.3f} MB times seconds"
        )
