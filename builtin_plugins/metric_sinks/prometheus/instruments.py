"""Counters and histograms as plain numbers: counting a token costs a fraction of a microsecond.

Each is written by one thread and may be read by any.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from prometheus_client import Metric

from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec
from core.contracts.spreads import Spread

Labels = tuple[str, ...]


def add_samples(metric: Metric, name: str, spread: Spread, labels: dict[str, str]) -> None:
    """Put a histogram into a metric as Prometheus wants it: buckets counted up."""
    bounds = [*map(str, spread.bounds), "+Inf"]
    for bound, total in zip(bounds, accumulate(spread.counts), strict=True):
        metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, total)
    metric.add_sample(f"{name}_count", labels, sum(spread.counts))
    metric.add_sample(f"{name}_sum", labels, spread.sum)


class Family:
    """All series of one metric: a number, or a histogram, for each combination of its own labels'
    values.
    """

    def __init__(self, spec: MetricSpec) -> None:
        self.spec: Final = spec
        self.histogram: Final = Spread(spec.buckets)
        """The one series of a metric that is a histogram."""
        self.values: Final[dict[Labels, float]] = {} if spec.labels or spec.buckets else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a number."""
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set a number."""
        self.values[labels] = value

    def metric(self, prefix: str, common: dict[str, str]) -> Metric:
        """Return all of it in Prometheus' form."""
        spec = self.spec
        name = prefix + spec.name
        metric = Metric(name, spec.text, spec.type)
        if spec.type == "histogram":
            add_samples(metric, name, self.histogram, common)
            return metric
        shown = name + "_total" * (spec.type == "counter")
        for labels, value in list(self.values.items()):
            metric.add_sample(
                shown, {**common, **dict(zip(spec.labels, labels, strict=True))}, value
            )
        return metric
