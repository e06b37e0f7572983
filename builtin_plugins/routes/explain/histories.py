"""The scheduler half: when each request came, reached the head of the queue, was computed, gave up
its place and ended.

Looks at requests when they come, start and end; at running ones only when somebody asks. Remembers
the last that ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from builtin_plugins.routes.names import names_of
from core.api import InvalidRequest, StepPlan

NAME: Final = "explain"
REMEMBERED: Final = 1000
"""Sequences that have ended."""


class Told(msgspec.Struct):
    """What is known of one sequence of a request."""

    request_id: str
    state: str
    """"waiting", "parked", "running" or "ended"."""
    why: str
    """Why it is in this state, or what it does there."""
    prompt_tokens: int
    tokens: int
    """Known ones: the prompt, and what was generated."""
    preemptions: int
    """Times it lost its place before its end."""
    queued_s: float
    """Until its first start."""
    computed_s: float
    """With a place."""
    displaced_s: float
    """Without one, after it was preempted."""
    plugin_s: dict[str, float]
    """By plugin, how long calls of its code took from this one's coming to its end, whoever they
    were for.
    """


@dataclass(slots=True)
class _History:
    """One sequence; times are those of a clock that never goes back."""

    request: Any
    """The scheduler's record, until it has ended."""
    arrived_s: float
    plugin_s: Mapping[str, float]
    """What plugins had taken when it came."""
    asked: bool = False
    """It has stood at the head of the queue."""
    spans: list[tuple[float, float | None]] = field(default_factory=list)
    """When it got a place, and lost it."""


class Histories:
    """Tells nobody anything unless asked; holds no request back."""

    name = NAME

    def __init__(
        self,
        remembered: int = REMEMBERED,
        clock: Callable[[], float] = time.monotonic,
        plugin_s: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`plugin_s` says how long each plugin has taken in this process so far."""
        self._plugin_s = plugin_s
        self._clock = clock
        self._live: dict[str, _History] = {}
        self._ended: deque[Told] = deque(maxlen=remembered)
        self._scheduler: Any = None

    def attach(self, scheduler: Any) -> None:
        """Remember whom to ask."""
        self._scheduler = scheduler

    def arrived(self, request: Any) -> None:
        """Begin to follow a request."""
        self._live[request.request_id] = _History(request, self._clock(), self._plugin_s())

    def may_start(self, request: Any) -> bool:
        """Note that it is the next to start, and that it has lost its place if it had one."""
        history = self._live[request.request_id]
        history.asked = True
        self._leave(history)
        return True

    def planned(self, plan: StepPlan) -> None:
        """Note who gets a place."""
        for new in plan.new:
            history = self._live.get(new.request_id)
            if history is not None:
                history.spans.append((self._clock(), None))

    def finished(self, request: Any) -> bool:
        """Keep what is worth remembering."""
        history = self._live.pop(request.request_id)
        self._leave(history)
        self._ended.append(self._told(history, "ended", ""))
        return False

    def call(self, verb: str, data: bytes) -> bytes:
        """Tell of all sequences of a request (`request`, its id as answers show it)."""
        if verb != "request":
            raise InvalidRequest("name", f"{NAME} knows request, not {verb!r}.")
        wanted = data.decode(errors="replace")
        ended = [told for told in self._ended if wanted in names_of(told.request_id)]
        live = [
            self._now(each)
            for each in self._live.values()
            if wanted in names_of(each.request.request_id)
        ]
        return msgspec.json.encode([*ended, *live])

    def _leave(self, history: _History) -> None:
        if history.spans and history.spans[-1][1] is None:
            history.spans[-1] = (history.spans[-1][0], self._clock())

    def _now(self, history: _History) -> Told:
        request = history.request
        state = request.state.name.lower()
        if state != "running":
            self._leave(history)
        why = {"waiting": self._why_waiting, "parked": self._why_parked, "running": self._doing}[
            state
        ]
        return self._told(history, state, why(history))

    def _told(self, history: _History, state: str, why: str) -> Told:
        now_s = self._clock()
        spans = history.spans
        request = history.request
        first_s = spans[0][0] if spans else now_s
        computed_s = sum((now_s if left is None else left) - began for began, left in spans)
        over_s = spans[-1][1] if state == "ended" and spans and spans[-1][1] is not None else now_s
        return Told(
            request.request_id,
            state,
            why,
            request.prompt_len,
            request.num_tokens,
            request.num_preemptions,
            first_s - history.arrived_s,
            computed_s,
            over_s - first_s - computed_s,
            {
                plugin: took
                for plugin, now in self._plugin_s().items()
                if (took := now - history.plugin_s.get(plugin, 0.0))
            },
        )

    def _why_waiting(self, history: _History) -> str:
        scheduler = self._scheduler
        request = history.request
        waiting = [
            each.request for each in self._live.values() if each.request.state is request.state
        ]
        before = sum(other.rank < request.rank for other in waiting)
        queue = f"{before} others wait before it; " if before else "it is the next; "
        most = scheduler.limits.max_num_seqs
        if scheduler.num_running >= most:
            return f"{queue}all {most} places are taken (--max-num-seqs)"
        if before:
            return queue + "who waits first has no room yet"
        if not history.asked:
            return queue + "no step has begun since it came"
        return queue + (
            f"a place is free, but neither is room for its {request.num_tokens} tokens in the KV "
            "cache, of which "
            f"{100 * scheduler.kv_usage:.0f}% is used (--kv-cache-memory-bytes), or the step has "
            "no tokens left for it "
            "(--max-num-batched-tokens)"
        )

    def _why_parked(self, history: _History) -> str:
        if history.request.sampling.structured_outputs is not None:
            return "a feature keeps it; most likely its constraint is being compiled"
        others = ", ".join(
            name for name in self._scheduler.extension_names if name not in (NAME, "memory")
        )
        return f"a feature keeps it until it may start; features here are {others}"

    def _doing(self, history: _History) -> str:
        request = history.request
        if request.num_tokens == request.prompt_len:
            return f"{min(request.planned, request.prompt_len)} of its {request.prompt_len} prompt tokens are computed"
        return f"{request.num_tokens - request.prompt_len} tokens are generated"
