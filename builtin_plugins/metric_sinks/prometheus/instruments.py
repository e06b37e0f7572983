"""Counters and histograms as plain numbers: counting a token costs a fraction of a microsecond.

Each is written by one thread and may be read by any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Metric

from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec

Labels = tuple[str, ...]


class Histogram:
    """Counts values by bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or as often as it was seen."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield (suffix, labels, value) as Prometheus wants them: buckets counted up."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield "_bucket", {"le": "+Inf" if bound == float("inf") else str(bound)}, total
        yield "_count", {}, total
        yield "_sum", {}, self._sum


class Family:
    """All series of one metric: a number, or a histogram, for each combination of its own labels' values."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec: Final = spec
        self.histogram: Final = Histogram(spec.buckets)
        """The one series of a metric that is a histogram."""
        self.values: Final[dict[Labels, float]] = {} if spec.labels or spec.buckets else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a number."""
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set a number."""
        self.values[labels] = value

    def metric(self, prefix: str, common: Mapping[str, str]) -> Metric:
        """Return all of it in Prometheus' form."""
        spec = self.spec
        name = prefix + spec.name
        metric = Metric(name, spec.text, spec.type)
        if spec.type == "histogram":
            for suffix, own, value in self.histogram.samples():
                metric.add_sample(name + suffix, {**common, **own}, value)
            return metric
        shown = name + "_total" * (spec.type == "counter")
        for labels, value in list(self.values.items()):
            metric.add_sample(shown, {**common, **dict(zip(spec.labels, labels, strict=True))}, value)
        return metric
