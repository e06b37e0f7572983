"""What every metric sink must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.contracts.telemetry import CallStats, HttpStats, RequestStats, StepStats, TokenStats
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject


TRAFFIC: Final = (
    (
        "step",
        StepStats(
            0.5,
            3,
            2,
            0.25,
            computed_tokens=100,
            cached_tokens=60,
            queried_tokens=160,
            preemptions=1,
        ),
    ),
    ("tokens", TokenStats(5, 100, 60, [0.5], [0.25, 0.25])),
    ("step", StepStats(0.25, 2, 0, 0.5, computed_tokens=2)),
    ("tokens", TokenStats(7, 0, 0, [], [0.125])),
    ("request", RequestStats("stop", 100, 8, 2.0, 0.5, 0.25, 60)),
    ("request", RequestStats("length", 60, 4, 1.0, 0.5, 0.125)),
    ("request", RequestStats("abort", 5, 0, 0.5)),
    ("http", HttpStats("/v1/models", "GET", 200, 0.125)),
    ("calls", CallStats(known=2, unknown=1)),
)
"""Two steps, three requests that end, one HTTP request and the calls of one output."""


def _series(page: bytes) -> dict[str, float]:
    """Return the value of each series of a page in Prometheus' text format, by name with labels as
    written.
    """
    lines = [line for line in page.decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def _sink(subject: Subject) -> Any:
    return subject.target(subject.config)


def check_takes_every_request(subject: Subject) -> None:
    """`request` accepts requests that no step computed, without a first token and with one token
    only.
    """
    sink = _sink(subject)
    sink.request(RequestStats("abort", 5, 0, 0.1))
    sink.request(RequestStats("abort", 5, 0, 0.1, None, 0.05))
    sink.request(RequestStats("stop", 5, 1, 0.1, 0.1, 0.0, 1))
    sink.request(RequestStats("length", 5, 100, 2.0, 0.1, 0.05, 60, 4, 2, 60, "an id"))


def check_methods_take_their_arguments(subject: Subject) -> None:
    """The optional methods accept the configuration, idle and busy steps, empty deliveries, and
    unknown paths.
    """
    sink = _sink(subject)
    for name, values in (
        ("ready", [subject.config]),
        ("step", [StepStats(0.0, 0, 0, 0.0), StepStats(0.5, 3, 2, 1.0, 100, 60, 100, 1)]),
        ("tokens", [TokenStats(1), TokenStats(3, 10, 4, [0.1], [0.01, 0.02])]),
        ("http", [HttpStats("/v1/models", "GET", 200, 0.1), HttpStats("", "BREW", 999, 0.0)]),
        ("calls", [CallStats(), CallStats(known=2, unknown=1)]),
    ):
        for value in values:
            if hasattr(sink, name):
                getattr(sink, name)(value)


def check_totals_are_what_its_traffic_makes(subject: Subject) -> None:
    """After the traffic of `TRAFFIC` its totals are those it states: nothing is dropped, nothing
    counted twice.

    `EXAMPLE_TOTALS` maps series as they are exposed, labels and all, or attributes of a sink that
    exposes none, to numbers.
    """
    totals = examples(subject, 'EXAMPLE_TOTALS = {"generated_tokens": 12}', "EXAMPLE_TOTALS")
    sink = _sink(subject)
    for name, stats in TRAFFIC:
        if hasattr(sink, name):
            getattr(sink, name)(stats)
    series = _series(sink.expose({"status": "ready"})[0]) if hasattr(sink, "expose") else None
    for name, total in dict(totals).items():
        found = getattr(sink, name, None) if series is None else series.get(name)
        assert found == total, (
            f"{subject.entry.name}: {name} is {found} after TRAFFIC, EXAMPLE_TOTALS says {total}."
        )


def check_two_sinks_live_in_one_process(subject: Subject) -> None:
    """A second engine in the process has a sink of its own: no state is shared through globals."""
    first = _sink(subject)
    second = _sink(subject)
    first.request(RequestStats("abort", 5, 0, 0.1))
    second.request(RequestStats("abort", 5, 0, 0.1))


def check_exposes_the_same_series_whatever_comes(subject: Subject) -> None:
    """Where a sink can be scraped, nothing a client sends makes new series."""
    sink = _sink(subject)
    if not hasattr(sink, "expose"):
        return
    if hasattr(sink, "step"):
        sink.step(StepStats(0.1, 1, 0, 0.5))
    lines = []
    for i in range(20):
        sink.request(RequestStats(f"reason {i}", i, i, 0.1, 0.1, request_id=f"request {i}"))
        if hasattr(sink, "http"):
            sink.http(HttpStats("", f"METHOD{i}", 600 + i, 0.1, f"request {i}"))
        lines.append(sink.expose({"status": "ready"})[0].count(b"\n"))
    assert lines == [lines[0]] * 20, f"{subject.entry.name}: label values are not from a fixed set."
