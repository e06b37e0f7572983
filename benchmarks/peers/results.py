"""What a comparison has measured, and the medians of it. Plain data, kept as JSON."""

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
    """A task, done once."""

    contender: str
    task: str
    round: int
    figures: Mapping[str, float]
    cores: float
    others: float
    """Mean cores that processes outside the comparison took."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process, from its start to its first token."""

    contender: str
    bits: int
    first_token_s: float
    pss_bytes: int
    others: float


@dataclass(slots=True)
class Results:
    """Everything that one comparison knows."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    starts: list[Start] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    rates: list[Mapping[str, Any]] = field(default_factory=list)
    """What the machine gave in each round, and the mean cores that others took."""
    final_pss_bytes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a contender is not there."""

    def write(self, file: Path) -> None:
        """Keep everything."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def median_rates(self, limit: float) -> Rates:
        """Return the medians of what the machine gave, undisturbed; of its products, those of the
        best kind.
        """
        read = statistics.median(rate["read_bytes_s"] for rate in self.kept_rates(limit))
        return Rates(read, max(self.products(limit).values()))

    def products(self, limit: float) -> dict[str, float]:
        """Return the median FLOP a second of each kind of product."""
        kept = self.kept_rates(limit)
        return {
            kind: statistics.median(rate["flop_s"][kind] for rate in kept)
            for kind in kept[0]["flop_s"]
        }

    def kept_rates(self, limit: float) -> list[Mapping[str, Any]]:
        """Return what was measured while others took at most so many cores; everything, when
        nothing was.
        """
        return [rate for rate in self.rates if rate["others"] <= limit] or self.rates


@dataclass(frozen=True, slots=True)
class Median:
    """A figure of a contender."""

    value: float
    runs: int
    dropped: int
    """Runs that are not in it, because others took too much of the cores."""
    disturbed: bool = False
    """Others took too much of the cores in every run, so all are in it."""


def undisturbed(runs: Iterable[Run], limit: float) -> list[Run]:
    """Return the runs beside which others took at most so many cores; all, when there is no such
    run.
    """
    listed = list(runs)
    return [run for run in listed if run.others <= limit] or listed


def medians(runs: Sequence[Run], limit: float) -> dict[tuple[str, str], dict[str, Median]]:
    """Return by (task, figure) and contender the median of the undisturbed runs, in the order of
    the runs.
    """
    found: dict[tuple[str, str], dict[str, Median]] = {}
    for task, contender in dict.fromkeys((run.task, run.contender) for run in runs):
        every = [run for run in runs if (run.task, run.contender) == (task, contender)]
        kept = undisturbed(every, limit)
        for figure in kept[0].figures:
            value = statistics.median(run.figures[figure] for run in kept)
            column = found.setdefault((task, figure), {})
            column[contender] = Median(
                value, len(kept), len(every) - len(kept), kept[0].others > limit
            )
    return found


def ratio(figure: str, value: float, other: float) -> float:
    """Return how many times as good as another a value is."""
    return other / value if figure == FIRST_MS else value / other
