"""Engine measurements as Prometheus metrics.

Label values come from fixed sets, so clients cannot create time series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

from builtin_plugins.clients.api import local_ranks
from builtin_plugins.metric_sinks.prometheus.catalogue import (
    BY_ENGINE,
    BY_SERVER,
    KNOWN,
    MEMORY,
    METRICS,
)
from builtin_plugins.metric_sinks.prometheus.custom_buckets import with_custom_buckets
from builtin_plugins.metric_sinks.prometheus.engine_series import EngineSeries
from builtin_plugins.metric_sinks.prometheus.feature_series import cache_blocks, feature_metrics
from builtin_plugins.metric_sinks.prometheus.instruments import Family
from builtin_plugins.metric_sinks.prometheus.memory import processes
from core.api import ConfigError, EngineConfig
from core.api.telemetry import CallStats, HttpStats, RequestStats, StepStats, TokenStats

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES: Final = frozenset(
    {*range(200, 207), 301, 302, 303, 304, 307, 308, *range(400, 432), 499, 500, 501, 502, 503, 504}
)
CACHE_INFO: Final = "cache_config_info"
_PREFIX_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")


class PrometheusSink:
    """Counts steps, tokens and requests in a registry of its own."""

    def __init__(self, config: EngineConfig) -> None:
        names = config.model.served_model_name or [config.model.model]
        self._prefix = _checked(config.options.get("metrics_prefix", "engine_"))
        self._labels = {"model_name": names[0]}
        self._cache_labels: dict[str, str] = {}
        self._set_blocks = str(config.cache.num_gpu_blocks_override)
        self._answers: Sequence[bytes] = ()
        """Last answers of the engines' processes."""
        given = config.options.get("custom_histogram_buckets")
        specs = with_custom_buckets(METRICS, given)
        self._specs = specs[: len(BY_ENGINE)]
        self._engines = {rank: EngineSeries(self._specs) for rank in local_ranks(config)}
        families = {spec.name: Family(spec) for spec in specs[-len(BY_SERVER) :]}
        self._families = families
        self._http = families["http_requests"]
        self._http_s = families["http_request_duration_seconds"].histogram.observe
        self._calls = families["tool_calls"]
        self._faults = families["plugin_faults"]
        self._seconds = families["plugin_seconds"]
        for known in KNOWN:
            self._calls.set(0.0, known)
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self))
        ProcessCollector(registry=self._registry)

    def ready(self, config: EngineConfig) -> None:
        """Store the resolved cache settings."""
        cache = config.cache
        labels = {name: str(getattr(cache, name)) for name in type(cache).__dataclass_fields__}
        # the resolved setting is the number of blocks, whether it was set or not
        labels["num_gpu_blocks"] = labels["num_gpu_blocks_override"]
        self._cache_labels = {**labels, "num_gpu_blocks_override": self._set_blocks}

    def step(self, stats: StepStats) -> None:
        """Count one engine step."""
        self._engines[stats.engine].step(stats)

    def tokens(self, stats: TokenStats) -> None:
        """Count the tokens of one delivery."""
        self._engines[stats.engine].tokens(stats)

    def request(self, stats: RequestStats) -> None:
        """Count one ended request."""
        self._engines[stats.engine].request(stats)

    def http(self, stats: HttpStats) -> None:
        """Count one HTTP request, by the template of its path."""
        method = stats.method if stats.method in METHODS else "other"
        status = str(stats.status) if stats.status in STATUSES else "other"
        self._http.add(1.0, stats.path or "other", method, status)
        self._http_s(stats.duration_s)

    def calls(self, stats: CallStats) -> None:
        """Count the tool calls of an answer."""
        for known, count in zip(KNOWN, (stats.known, stats.unknown), strict=True):
            self._calls.add(count, known)

    def expose(self, health: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the metrics page and its content type."""
        self._set_engine_states(health)
        state = self._families
        state["requests_open"].set(health.get("open_requests", 0))
        state["server_restarts"].set(health.get("server_restarts", 0))
        for sink in health.get("sinks", ()):
            state["sink_faults"].set(sink["faults"], sink["sink"])
        self._set_memory(health.get("memory") or {})
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def snapshots(self, health: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the time series of the page as objects."""
        from builtin_plugins.metric_sinks.prometheus.snapshots import snapshots  # lazy: rarely used

        return snapshots(self.expose(health)[0])

    def _set_engine_states(self, health: Mapping[str, Any]) -> None:
        """Set the state of each engine; a draining server has none that is ready."""
        drains = health.get("status") == "draining"
        states = health.get("engines") or [health]
        for engine, each in zip(self._engines.values(), states, strict=False):
            engine.families["ready"].set(float(each.get("status") == "ready" and not drains))
            engine.families["restarts"].set(each.get("restarts", 0))

    def _set_memory(self, memory: Mapping[str, Any]) -> None:
        """Set memory, plugin faults and plugin times of this process and of the engine's.

        A process that has ended has no memory; the numbers of its plugins stay until a process of
        the same name starts.
        """
        bytes_, limits, resident = (self._families[spec.name] for spec in MEMORY)
        for family in (bytes_, limits, resident):
            family.values.clear()
        self._answers = memory.get("engine") or ()
        for found in processes(
            memory.get("owners") or {}, self._answers, memory.get("faults"), memory.get("seconds")
        ):
            for plugin, seconds in found.seconds.items():
                self._seconds.set(seconds, plugin, found.process)
            for plugin, (count, _) in found.faults.items():
                self._faults.set(count, plugin, found.process)
            resident.set(found.resident, found.process)
            for owner, (now, maximum) in found.owners.items():
                bytes_.set(now, found.process, owner)
                if maximum is not None:
                    limits.set(maximum, found.process, owner)

    def metrics(self) -> Iterator[Metric]:
        """Yield every metric in Prometheus' form."""
        for spec in self._specs:
            if spec.name != CACHE_INFO:
                yield self._joined(spec.name)
            elif self._cache_labels:  # known when the engine has started
                yield self._cache_info(spec.text)
        for family in self._families.values():
            yield family.metric(self._prefix, self._labels)
        yield from feature_metrics(self._answers, self._prefix, self._labels["model_name"])

    def _joined(self, name: str) -> Metric:
        """Return a metric with the series of all engines."""
        parts = [
            engine.families[name].metric(self._prefix, {**self._labels, "engine": str(rank)})
            for rank, engine in self._engines.items()
        ]
        for part in parts[1:]:
            parts[0].samples.extend(part.samples)
        return parts[0]

    def _cache_info(self, text: str) -> Metric:
        info = Metric(self._prefix + CACHE_INFO, text, "gauge")
        blocks = cache_blocks(self._answers)
        for rank in self._engines:
            labels = {**self._cache_labels, "engine": str(rank)}
            if rank in blocks:
                labels["num_gpu_blocks"] = str(blocks[rank])
            info.add_sample(self._prefix + CACHE_INFO, labels, 1.0)
        return info


class _Families(Collector):
    """Collector of a sink's metrics, as the library needs it."""

    def __init__(self, sink: PrometheusSink) -> None:
        self._sink = sink

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        return self._sink.metrics()


def _checked(prefix: str) -> str:
    if prefix and (prefix[0].isdigit() or not _PREFIX_CHARS.issuperset(prefix)):
        raise ConfigError(
            f"--metrics-prefix {prefix!r} cannot start a metric's name; use ASCII letters, digits, "
            "`_` and `:`, no digit first."
        )
    return prefix
