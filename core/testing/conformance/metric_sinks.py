"""What every metric sink must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.config import EngineConfig
from core.contracts import RequestStats, StepStats

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def _sink(subject: Subject) -> Any:
    return subject.target(EngineConfig())


def check_takes_every_step(subject: Subject) -> None:
    """`step` accepts idle and busy steps and finish reasons it has never heard of."""
    sink = _sink(subject)
    sink.step(StepStats(0.0, 0, 0, 0.0))
    sink.step(StepStats(0.5, 3, 2, 1.0, 100, 20, 60, 100, 1, {"stop": 2, "length": 1, "something new": 1}))


def check_takes_every_request(subject: Subject) -> None:
    """`request` accepts requests without a first token and with one token only."""
    sink = _sink(subject)
    sink.request(RequestStats("abort", 5, 0, 0.1, None))
    sink.request(RequestStats("stop", 5, 1, 0.1, 0.1, 0.0))
    sink.request(RequestStats("length", 5, 100, 2.0, 0.1, 0.05))


def check_two_sinks_live_in_one_process(subject: Subject) -> None:
    """A second engine in the process has a sink of its own: no state is shared through globals."""
    first, second = _sink(subject), _sink(subject)
    first.step(StepStats(0.1, 1, 0, 0.5))
    second.step(StepStats(0.1, 1, 0, 0.5))


def check_exposes_the_same_series_whatever_comes(subject: Subject) -> None:
    """Where a sink can be scraped, nothing a client sends makes new series."""
    sink = _sink(subject)
    if not hasattr(sink, "expose"):
        return
    sink.step(StepStats(0.1, 1, 0, 0.5))
    before = sink.expose()[0].count(b"\n")
    for i in range(20):
        sink.step(StepStats(0.1, 1, 0, 0.5, finished={f"reason {i}": 1}))
        sink.request(RequestStats(f"reason {i}", i, i, 0.1, 0.1))
    assert sink.expose()[0].count(b"\n") == before, f"{subject.entry.name}: label values are not from a fixed set."
