"""Hands measurements to metric sinks. A sink that keeps failing is quarantined; it never stops the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import HttpStats, MetricSink, RequestStats, StepStats, TokenStats

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

    def _tell(self, name: str, what: Any) -> None:
        for guarded in self.guarded:
            method = getattr(guarded.sink, name, None)
            if method is not None and not guarded.quarantined:
                self._call(guarded, name, method, what)

    def _call(self, guarded: Guarded, name: str, method: Callable[[Any], None], what: Any) -> None:
        try:
            method(what)
        except Exception as error:  # noqa: BLE001 - a sink is a side effect: counted, named, quarantined, never fatal
            guarded.faults += 1
            guarded.in_a_row[name] = guarded.in_a_row.get(name, 0) + 1
            guarded.quarantined = guarded.in_a_row[name] >= MAX_FAULTS
            guarded.last_error = f"{type(error).__name__}: {error}"
            action = "quarantined" if guarded.quarantined else "skipped"
            log.warning(
                "metric sink %r of %s failed and is %s: %s", guarded.name, guarded.owner, action, guarded.last_error
            )
        else:
            if guarded.in_a_row:
                guarded.in_a_row.pop(name, None)

    def faults(self) -> Iterable[dict[str, Any]]:
        """Yield what `/health` shows of sinks that failed."""
        for guarded in self.guarded:
            if guarded.last_error is not None:
                yield {
                    "sink": guarded.name,
                    "owner": guarded.owner,
                    "quarantined": guarded.quarantined,
                    "faults": guarded.faults,
                    "error": guarded.last_error,
                }
