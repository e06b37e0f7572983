"""Reads a page of metrics back as objects, for `LLM.get_metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Metric:
    """One time series."""

    name: str
    """Prometheus name without `_total`."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A value that only grows."""

    value: float


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A current value."""

    value: float


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A histogram with cumulative buckets."""

    count: int
    sum: float
    buckets: Mapping[str, int]
    """Number of values up to each upper bound."""


Snapshot = Counter | Gauge | Histogram


def snapshots(body: bytes) -> Iterator[Snapshot]:
    """Yield the time series of a page in Prometheus text format."""
    for family in text_string_to_metric_families(body.decode()):
        if family.type == "histogram":
            yield from _histograms(family)
        elif family.type in ("counter", "gauge"):
            kind = Counter if family.type == "counter" else Gauge
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    yield kind(family.name, sample.labels, sample.value)


def _histograms(family: Any) -> Iterator[Histogram]:
    """Yield one histogram per set of labels of a
    `prometheus_client` family.
    """
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        values = by_labels.setdefault(tuple(sorted(labels.items())), {})
        values[sample.labels.get("le") or sample.name.removeprefix(family.name)] = sample.value
    for key, values in by_labels.items():
        buckets = {le: int(value) for le, value in values.items() if not le.startswith("_")}
        yield Histogram(family.name, dict(key), int(values["_count"]), values["_sum"], buckets)
