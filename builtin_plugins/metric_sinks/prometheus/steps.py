"""The metrics of engine steps: one series for each engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric

from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec
from builtin_plugins.metric_sinks.prometheus.instruments import Family
from core.api.telemetry import StepStats


class EngineSteps:
    """Counts the steps of one engine."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        self.families: Final = {spec.name: Family(spec) for spec in specs}
        self._running = self.families["num_requests_running"]
        self._waiting = self.families["num_requests_waiting"]
        self._kv_usage = self.families["kv_cache_usage_perc"]
        self._queries = self.families["prefix_cache_queries"]
        self._hits = self.families["prefix_cache_hits"]
        self._preemptions = self.families["num_preemptions"]
        self._step_s = self.families["step_time_seconds"].histogram.observe
        self._step_tokens = self.families["iteration_tokens_total"].histogram.observe

    def step(self, stats: StepStats) -> None:
        """Count one step; one without time only updates the gauges after an abort."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_usage)
        if not stats.step_s:
            return
        self._step_s(stats.step_s)
        self._step_tokens(stats.computed_tokens)
        if stats.queried_tokens:
            self._queries.add(stats.queried_tokens)
            self._hits.add(stats.cached_tokens)
        if stats.preemptions:
            self._preemptions.add(stats.preemptions)


class StepMetrics:
    """Counts the steps of all engines."""

    def __init__(self, specs: Iterable[MetricSpec], ranks: Iterable[int]) -> None:
        self._specs = list(specs)
        self._engines = {rank: EngineSteps(self._specs) for rank in ranks}

    def step(self, stats: StepStats) -> None:
        """Count one step of an engine."""
        self._engines[stats.engine].step(stats)

    def metrics(self, prefix: str, labels: Mapping[str, str]) -> Iterator[Metric]:
        """Yield every metric in Prometheus' form, with the engines' series."""
        for spec in self._specs:
            parts = [
                engine.families[spec.name].metric(prefix, {**labels, "engine": str(rank)})
                for rank, engine in self._engines.items()
            ]
            for part in parts[1:]:
                parts[0].samples.extend(part.samples)
            yield parts[0]
