"""What features report when metrics are scraped: gauges, histograms, and memory of this process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from core.api import Registry


class Histogram:
    """A histogram with fixed buckets.

    Written by one thread; any thread may read it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, bounds: Sequence[float], counts: Sequence[int] = (), sum: float = 0.0
    ) -> None:
        self.bounds: Final = tuple(bounds)
        """Upper bounds of the buckets, ascending and inclusive."""
        self.counts: Final = list(counts) or [0] * (len(bounds) + 1)
        """Number of values per bucket; the last entry counts values above all
        bounds.
        """
        self.sum = sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


InfoProvider = Callable[[], Mapping[str, str]]
"""Returns the labels of a metric that is always 1. Must be quick.

Called between two steps in the process of the feature's scheduler half.
"""


GaugeProvider = Callable[[], Mapping[str, float]]
"""Returns numbers by metric name, called like an `InfoProvider`.

A name that ends with `_total` is a counter. `with_label` adds a label to a name.
"""


HistogramProvider = Callable[[], Mapping[str, Histogram]]
"""Returns histograms by metric name, called like an `InfoProvider`."""


def with_label(name: str, label: str, value: str) -> str:
    """Return a metric name with one label.

    Its values must be a small fixed set.
    """
    return f"{name}{{{label}={value}}}"


def split_labels(labelled_name: str) -> tuple[str, dict[str, str]]:
    """Return the metric name and the labels of a name made by
    `with_label`.
    """
    name, _, label = labelled_name.partition("{")
    if not label:
        return name, {}
    key, _, value = label.removesuffix("}").partition("=")
    return name, {key: value}


def info_providers(registry: Registry) -> dict[str, InfoProvider]:
    """Return this process's info providers by metric name; features add their
    own.
    """
    made: dict[str, InfoProvider] = registry.shared("infos", dict)
    return made


def gauge_providers(registry: Registry) -> dict[str, GaugeProvider]:
    """Return this process's gauge and counter providers by feature; features
    add their own.
    """
    made: dict[str, GaugeProvider] = registry.shared("numbers", dict)
    return made


def histogram_providers(registry: Registry) -> dict[str, HistogramProvider]:
    """Return this process's histogram providers by feature; features add
    their own.
    """
    made: dict[str, HistogramProvider] = registry.shared("spreads", dict)
    return made


def plugin_faults(registry: Registry) -> Mapping[str, tuple[int, str]]:
    """Return the number of exceptions and the last message of each plugin
    that has raised.

    Exceptions that a contract allows are not counted.
    """
    found: Mapping[str, tuple[int, str]] = registry.shared("faults", dict)
    return dict(found)


class CallTotals(Protocol):
    """The call timer of a process (`core.plugin.call_timer.CallTimer`)."""

    def totals(self) -> Mapping[str, float]:
        """Return the measured seconds of each plugin."""


def plugin_seconds(registry: Registry) -> Mapping[str, float]:
    """Return the seconds that calls into each plugin have taken in this
    process.
    """
    timer: CallTotals = registry.shared("call_timer", _no_timer)
    return timer.totals()


def _no_timer() -> CallTotals:
    raise LookupError("this registry times no calls")


# --- memory of this process -------------------------------------------------

ByteCount = Callable[[], int]
"""Returns a number of bytes. Called from any thread; must not block."""


@dataclass(slots=True)
class MemoryOwners:
    """The owners of growing memory in one process, by name."""

    owners: dict[str, tuple[ByteCount, ByteCount]] = field(default_factory=dict)

    def add(self, owner: str, num_bytes: ByteCount, limit: ByteCount) -> None:
        """Add an owner with its current size and its limit; replaces one of
        the same name.

        Names are a fixed set in snake case (`grammar_cache`): they are label values of
        a metric.
        """
        self.owners[owner] = num_bytes, limit

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return the current bytes and the limit of each owner."""
        owners = list(self.owners.items())
        return {owner: (num_bytes(), limit()) for owner, (num_bytes, limit) in owners}


def memory_owners(registry: Registry) -> MemoryOwners:
    """Return the memory owners of this process."""
    made: MemoryOwners = registry.shared("memory", MemoryOwners)
    return made
