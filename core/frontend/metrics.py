"""Request metrics, and their sinks.

A sink that keeps failing is quarantined; it never stops the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from core.contracts.telemetry import (
    CallStats,
    HttpStats,
    MetricSink,
    RequestStats,
    StepStats,
    TokenStats,
)
from core.errors import NON_FINITE

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.frontend.client_request import ClientRequest
    from core.frontend.text.sequence import OutputSequence

log = logging.getLogger(__name__)

MAX_FAULTS: Final = 5
"""Consecutive faults of one method after which its sink is quarantined."""
METHODS: Final[Mapping[type[Any], str]] = {
    StepStats: "step",
    TokenStats: "tokens",
    RequestStats: "request",
    HttpStats: "http",
    CallStats: "calls",
}
"""Method of a sink for each kind of statistics."""


@dataclass(slots=True)
class SinkHealth:
    """A metric sink with its fault counts."""

    name: str
    owner: str
    """Plugin, distribution and version, for messages."""
    sink: MetricSink
    in_a_row: dict[str, int] = field(default_factory=dict)
    """Faults since the last success, by method."""
    faults: int = 0
    last_error: str | None = None
    quarantined: bool = False
    """True: it is no longer called."""

    def failed(self, method: str, error: Exception) -> None:
        """Count a fault; log the first one and the one that quarantines the sink."""
        self.faults += 1
        self.in_a_row[method] = self.in_a_row.get(method, 0) + 1
        self.quarantined = self.in_a_row[method] >= MAX_FAULTS
        cause = error.__cause__ or error
        self.last_error = f"{type(cause).__name__}: {cause}"
        if self.faults == 1 or self.quarantined:
            action = "quarantined" if self.quarantined else "skipped"
            log.warning("metric sink %r is %s: %s", self.name, action, error)


@dataclass(slots=True)
class MetricSinks:
    """All metric sinks of an engine."""

    entries: list[SinkHealth] = field(default_factory=list)
    _methods: dict[str, list[Any]] = field(default_factory=dict)
    """Sinks and methods, by its name."""

    def ready(self, config: EngineConfig) -> None:
        """Pass on the resolved configuration."""
        self._call("ready", config)

    def record(self, stats: StepStats | TokenStats | RequestStats | HttpStats | CallStats) -> None:
        """Pass statistics to the healthy sinks that take them."""
        self._call(METHODS[type(stats)], stats)

    def _call(self, name: str, argument: Any) -> None:
        methods = self._methods.get(name)
        if methods is None:  # once: a step takes microseconds
            having = [each for each in self.entries if hasattr(each.sink, name)]
            methods = [(each, getattr(each.sink, name)) for each in having]
            self._methods[name] = methods
        for entry, method in methods:
            if entry.quarantined:
                continue
            try:
                method(argument)
                entry.in_a_row.pop(name, None)
            except Exception as error:  # noqa: BLE001 - metrics must never stop the engine
                entry.failed(name, error)

    def faults(self) -> Iterable[dict[str, Any]]:
        """Yield the sinks that failed, as `/health` reports them."""
        for entry in self.entries:
            if entry.last_error is not None:
                yield {
                    "sink": entry.name,
                    "owner": entry.owner,
                    "quarantined": entry.quarantined,
                    "faults": entry.faults,
                    "error": entry.last_error,
                }


class RequestMeter:
    """Counts the tokens of each delivery, and records every
    finished request.
    """

    def __init__(self, sinks: MetricSinks) -> None:
        self._sinks = sinks
        self._tokens: dict[int, TokenStats] = {}
        """Tokens of this delivery, by engine."""

    def tokens(
        self, client: ClientRequest, sequence: OutputSequence, count: int, now_s: float
    ) -> None:
        """Count new tokens, before request and sequence are updated."""
        rank = client.engine
        stats = self._tokens.get(rank)
        if stats is None:
            stats = self._tokens[rank] = TokenStats(0, engine=rank)
        stats.generated_tokens += count
        if sequence.last_token_s is not None:
            stats.inter_token_s.append(now_s - sequence.last_token_s)
        elif client.first_token_s is None:
            stats.first_token_s.append(now_s - client.arrival_s)
            stats.prompt_tokens += len(client.prompt_token_ids)
            stats.cached_tokens += client.num_cached_tokens or 0

    def delivered(self) -> None:
        """Record the tokens since the last call."""
        for stats in self._tokens.values():
            self._sinks.record(stats)
        self._tokens.clear()

    def finished(self, client: ClientRequest, reason: str, now_s: float) -> None:
        """Record a finished request."""
        arrival_s = client.arrival_s
        first_s = client.first_token_s
        started_s = client.started_s
        sizes = [len(sequence.token_ids) for sequence in client.sequences.values()]
        self._sinks.record(
            RequestStats(
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
                output_token_ids=[each.token_ids for each in client.sequences.values()],
                extra_fields=client.extra_fields,
                engine=client.engine,
                is_corrupted=client.error == NON_FINITE,
            )
        )
