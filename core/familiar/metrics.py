"""What an engine has counted, as objects instead of Prometheus' text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One series."""

    name: str
    """As Prometheus has it, without `_total`."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """Grows only."""

    value: float


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """Stands where it stands."""

    value: float


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Values by size."""

    count: int
    sum: float
    buckets: Mapping[str, int]
    """Upper bound to the number of values up to it."""


Snapshot = Counter | Gauge | Histogram


def snapshots(body: bytes, content_type: str) -> Iterator[Snapshot]:
    """Yield the series of a page in Prometheus' text form."""
    from prometheus_client.parser import text_string_to_metric_families  # lazy: few programs ask

    for family in text_string_to_metric_families(body.decode()):
        if family.type == "histogram":
            yield from _histograms(family)
        elif family.type in ("counter", "gauge"):
            kind = Counter if family.type == "counter" else Gauge
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    yield kind(family.name, sample.labels, sample.value)


def _histograms(family: object) -> Iterator[Histogram]:
    """Put together what belongs to the same labels."""
    parts: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:  # type: ignore[attr-defined]  # a Metric of prometheus_client
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        part = parts.setdefault(tuple(sorted(labels.items())), {})
        part[sample.labels.get("le") or sample.name.removeprefix(family.name)] = sample.value  # type: ignore[attr-defined]
    for key, part in parts.items():
        buckets = {le: int(value) for le, value in part.items() if not le.startswith("_")}
        yield Histogram(family.name, dict(key), int(part["_count"]), part["_sum"], buckets)  # type: ignore[attr-defined]
