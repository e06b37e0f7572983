"""Measurements of a comparison and their medians, stored as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.limits import Rates
from benchmarks.peers.work import FIRST_MS


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task."""

    contender: str
    task: str
    round: int
    figures: Mapping[str, float]
    cores: float
    others: float
    """Mean cores used by processes outside the comparison."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a process until its first token."""

    contender: str
    bits: int
    first_token_s: float
    pss_bytes: int
    others: float


@dataclass(slots=True)
class Results:
    """All measurements of one comparison."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    starts: list[Start] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    rates: list[Mapping[str, Any]] = field(default_factory=list)
    """Machine rates per round, and mean cores used by others."""
    final_pss_bytes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Reasons why contenders are missing."""

    def write(self, file: Path) -> None:
        """Write everything as JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def median_rates(self, limit: float) -> Rates:
        """Return the median undisturbed machine rates; for products the best kind."""
        read = statistics.median(rate["read_bytes_s"] for rate in self.undisturbed_rates(limit))
        return Rates(read, max(self.products(limit).values()))

    def products(self, limit: float) -> dict[str, float]:
        """Return the median FLOP per second of each kind of product."""
        counted = self.undisturbed_rates(limit)
        return {
            kind: statistics.median(rate["flop_s"][kind] for rate in counted)
            for kind in counted[0]["flop_s"]
        }

    def undisturbed_rates(self, limit: float) -> list[Mapping[str, Any]]:
        """Return the undisturbed rates, or all rates if there are none."""
        return [rate for rate in self.rates if rate["others"] <= limit] or self.rates


@dataclass(frozen=True, slots=True)
class Median:
    """A median of a contender."""

    value: float
    runs: int
    dropped: int
    """Number of excluded disturbed runs."""
    disturbed: bool = False
    """Whether all runs were disturbed; then all count."""


def undisturbed(runs: Iterable[Run], limit: float) -> list[Run]:
    """Return the undisturbed runs, or all runs if there are none."""
    listed = list(runs)
    return [run for run in listed if run.others <= limit] or listed


def medians(runs: Sequence[Run], limit: float) -> dict[tuple[str, str], dict[str, Median]]:
    """Return the medians of undisturbed runs by (task, figure) and contender."""
    found: dict[tuple[str, str], dict[str, Median]] = {}
    for task, contender in dict.fromkeys((run.task, run.contender) for run in runs):
        every = [run for run in runs if (run.task, run.contender) == (task, contender)]
        counted = undisturbed(every, limit)
        for figure in counted[0].figures:
            value = statistics.median(run.figures[figure] for run in counted)
            column = found.setdefault((task, figure), {})
            column[contender] = Median(
                value, len(counted), len(every) - len(counted), counted[0].others > limit
            )
    return found


def ratio(figure: str, value: float, other: float) -> float:
    """Return how many times better a value is than another."""
    return other / value if figure == FIRST_MS else value / other
