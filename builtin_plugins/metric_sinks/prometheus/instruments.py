"""Counters and histograms as plain numbers: counting costs a fraction of a microsecond.

Each is written by one thread and may be read by any.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from prometheus_client import Metric

from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec
from builtin_plugins.metric_sinks.providers import Histogram

Labels = tuple[str, ...]


def add_samples(metric: Metric, name: str, histogram: Histogram, labels: dict[str, str]) -> None:
    """Add the samples of a histogram to a metric, with cumulative buckets."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for bound, total in zip(bounds, accumulate(histogram.counts), strict=True):
        metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, total)
    metric.add_sample(f"{name}_count", labels, sum(histogram.counts))
    metric.add_sample(f"{name}_sum", labels, histogram.sum)


class Family:
    """All series of one metric: a histogram, or a number per combination of label values."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec: Final = spec
        self.histogram: Final = Histogram(spec.buckets)
        """The series of a histogram metric."""
        self.values: Final[dict[Labels, float]] = {} if spec.labels or spec.buckets else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a number."""
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set a number."""
        self.values[labels] = value

    def metric(self, prefix: str, common: dict[str, str]) -> Metric:
        """Return the metric in the library's form."""
        spec = self.spec
        name = prefix + spec.name
        metric = Metric(name, spec.text, spec.type)
        if spec.type == "histogram":
            add_samples(metric, name, self.histogram, common)
            return metric
        sample = name + "_total" * (spec.type == "counter")
        for labels, value in list(self.values.items()):
            metric.add_sample(
                sample, {**common, **dict(zip(spec.labels, labels, strict=True))}, value
            )
        return metric
