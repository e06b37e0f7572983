"""What the features of each engine report at a scrape: infos, gauges, counters and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from prometheus_client import Metric

from builtin_plugins.metric_sinks.prometheus.instruments import add_samples
from builtin_plugins.metric_sinks.providers import Histogram, split_labels


def feature_metrics(answers: Sequence[bytes], prefix: str, model: str) -> Iterator[Metric]:
    """Yield the metrics in the answers of the engines' processes, with a series per engine."""
    metrics: dict[str, Metric] = {}

    def full_name(name: str) -> str:
        # vLLM's engine_sleep_state has our default prefix already
        return name if prefix and name.startswith(prefix) else prefix + name

    for answer in answers:
        reported = msgspec.json.decode(answer)
        labels = {"model_name": model, "engine": str(reported.get("engine", 0))}
        for name, info in reported.get("infos", {}).items():
            full = full_name(name)
            metric = metrics.setdefault(name, Metric(full, "Info of a feature.", "gauge"))
            metric.add_sample(full, {**labels, **info}, 1.0)
        for labelled_name, value in reported.get("numbers", {}).items():
            name, own = split_labels(labelled_name)
            full = full_name(name)
            metric = metrics.setdefault(name, _number(full))
            metric.add_sample(full, {**labels, **own}, value)
        for name, (bounds, counts, total) in reported.get("histograms", {}).items():
            full = full_name(name)
            metric = metrics.setdefault(name, _histogram(full))
            add_samples(metric, full, Histogram(bounds, counts, total), labels)
    yield from metrics.values()


def cache_blocks(answers: Sequence[bytes]) -> dict[int, int]:
    """Return the number of KV blocks of each engine that has answered."""
    reported: list[dict[str, Any]] = [msgspec.json.decode(answer) for answer in answers]
    return {each["engine"]: each["num_blocks"] for each in reported if "num_blocks" in each}


def _number(name: str) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(name.removesuffix("_total"), "Number of a feature.", kind)


def _histogram(name: str) -> Metric:
    return Metric(name, "Histogram of a feature.", "histogram")
