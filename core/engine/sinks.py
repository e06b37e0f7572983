"""Hands measurements to metric sinks. A sink that keeps failing is quarantined; it never stops the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from core.contracts import MetricSink, RequestStats, StepStats

log = logging.getLogger(__name__)

MAX_FAULTS: Final = 5
"""Faults in a row after which a sink is no longer called."""


@dataclass(slots=True)
class Guarded:
    """One sink with the count of its faults."""

    name: str
    owner: str
    """Plugin, distribution and version, for the blame."""
    sink: MetricSink
    faults: int = 0
    last_error: str | None = None

    @property
    def quarantined(self) -> bool:
        """Say whether the sink failed too often to be called again."""
        return self.faults >= MAX_FAULTS


@dataclass(slots=True)
class Sinks:
    """All metric sinks of an engine."""

    guarded: list[Guarded] = field(default_factory=list)

    def step(self, stats: StepStats) -> None:
        """Give every healthy sink the numbers of one step."""
        for guarded in self.guarded:
            self._call(guarded, guarded.sink.step, stats)

    def request(self, stats: RequestStats) -> None:
        """Give every healthy sink the numbers of one finished request."""
        for guarded in self.guarded:
            self._call(guarded, guarded.sink.request, stats)

    def _call(self, guarded: Guarded, method: Callable[[Any], None], stats: Any) -> None:
        if guarded.quarantined:
            return
        try:
            method(stats)
        except Exception as error:  # noqa: BLE001 - a sink is a side effect: counted, named, quarantined, never fatal
            guarded.faults += 1
            guarded.last_error = f"{type(error).__name__}: {error}"
            action = "quarantined" if guarded.quarantined else "skipped"
            log.warning(
                "metric sink %r of %s failed and is %s: %s", guarded.name, guarded.owner, action, guarded.last_error
            )
        else:
            guarded.faults = 0

    def faults(self) -> Iterable[dict[str, Any]]:
        """Yield what `/health` shows of sinks that failed."""
        for guarded in self.guarded:
            if guarded.last_error is not None:
                yield {
                    "sink": guarded.name,
                    "owner": guarded.owner,
                    "quarantined": guarded.quarantined,
                    "error": guarded.last_error,
                }
