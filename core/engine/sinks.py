"""What requests get, as numbers, and the metric sinks that take them.

A sink that keeps failing is quarantined; it never stops the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from core.contracts import CallStats, HttpStats, MetricSink, RequestStats, StepStats, TokenStats
from core.engine.followed import ClientRequest
from core.text.sequence import GrowingSequence

if TYPE_CHECKING:
    from core.config import EngineConfig

log = logging.getLogger(__name__)

MAX_FAULTS: Final = 5
"""Faults of one method in a row after which a sink is no longer called."""


@dataclass(slots=True)
class Guarded:
    """One sink with the count of its faults."""

    name: str
    owner: str
    """Plugin, distribution and version, for the blame."""
    sink: MetricSink
    in_a_row: dict[str, int] = field(default_factory=dict)
    """Faults since the last success, by method."""
    faults: int = 0
    last_error: str | None = None
    quarantined: bool = False
    """It failed too often to be called again."""

    def failed(self, method: str, error: Exception) -> None:
        """Count a fault; the first is logged, and that of which it is called no more."""
        self.faults += 1
        self.in_a_row[method] = self.in_a_row.get(method, 0) + 1
        self.quarantined = self.in_a_row[method] >= MAX_FAULTS
        cause = error.__cause__ or error
        self.last_error = f"{type(cause).__name__}: {cause}"
        if self.faults == 1 or self.quarantined:
            log.warning(
                "metric sink %r is %s: %s",
                self.name,
                "quarantined" if self.quarantined else "skipped",
                error,
            )


@dataclass(slots=True)
class Sinks:
    """All metric sinks of an engine."""

    guarded: list[Guarded] = field(default_factory=list)

    def ready(self, config: EngineConfig) -> None:
        """Tell the sinks that ask for it what was decided."""
        self._tell("ready", config)

    def step(self, stats: StepStats) -> None:
        """Give every healthy sink the numbers of one step."""
        self._tell("step", stats)

    def tokens(self, stats: TokenStats) -> None:
        """Give the sinks that ask for it what one delivery brought."""
        self._tell("tokens", stats)

    def request(self, stats: RequestStats) -> None:
        """Give every healthy sink the numbers of one request that has ended."""
        self._tell("request", stats)

    def http(self, stats: HttpStats) -> None:
        """Give the sinks that ask for it the numbers of one HTTP request."""
        self._tell("http", stats)

    def calls(self, stats: CallStats) -> None:
        """Give the sinks that ask for it the calls of tools that an answer brought."""
        self._tell("calls", stats)

    def _tell(self, name: str, what: Any) -> None:
        for guarded in self.guarded:
            method = getattr(guarded.sink, name, None)
            if method is None or guarded.quarantined:
                continue
            try:
                method(what)
                guarded.in_a_row.pop(name, None)
            except Exception as error:  # noqa: BLE001 - a side effect: counted, named, quarantined, never fatal
                guarded.failed(name, error)

    def faults(self) -> Iterable[dict[str, Any]]:
        """Yield what `/health` shows of sinks that failed."""
        for guarded in self.guarded:
            if guarded.last_error is not None:
                who = {
                    "sink": guarded.name,
                    "owner": guarded.owner,
                    "quarantined": guarded.quarantined,
                }
                yield {**who, "faults": guarded.faults, "error": guarded.last_error}


class Meter:
    """Counts what one delivery brings, and tells of each request when it has ended."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._start()

    def _start(self) -> None:
        self._generated = self._prompt = self._cached = 0
        self._first: list[float] = []
        self._between: list[float] = []

    def tokens(
        self, client: ClientRequest, sequence: GrowingSequence, count: int, now_s: float
    ) -> None:
        """Count the tokens of one sequence; called before they are noted in either."""
        self._generated += count
        if sequence.last_token_s is not None:
            self._between.append(now_s - sequence.last_token_s)
        elif client.first_token_s is None:
            self._first.append(now_s - client.arrival_s)
            self._prompt += len(client.prompt_token_ids)
            self._cached += client.num_cached_tokens or 0

    def delivered(self) -> None:
        """Hand on what was counted since the last call."""
        if self._generated:
            self._sinks.tokens(
                TokenStats(self._generated, self._prompt, self._cached, self._first, self._between)
            )
            self._start()

    def ended(self, client: ClientRequest, reason: str, now_s: float) -> None:
        """Hand on the numbers of a request that has ended."""
        arrival_s = client.arrival_s
        sizes = [len(s.token_ids) for s in client.sequences.values()]
        first_s = client.first_token_s
        started_s = client.started_s
        stats = RequestStats(
            finish_reason=reason,
            prompt_tokens=len(client.prompt_token_ids),
            generated_tokens=sum(sizes),
            e2e_s=now_s - arrival_s,
            ttft_s=None if first_s is None else first_s - arrival_s,
            queue_s=None if started_s is None else started_s - arrival_s,
            longest_output=max(sizes),
            cached_tokens=client.num_cached_tokens or 0,
            n=client.sampling.n,
            max_tokens=client.sampling.max_tokens,
            request_id=client.request_id,
            shown=client.shown,
        )
        self._sinks.request(stats)
