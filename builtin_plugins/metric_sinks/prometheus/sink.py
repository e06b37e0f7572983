"""Engine measurements as Prometheus metrics.

Label values come from fixed sets, so clients cannot create time series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
    ENGINE,
    FEATURES,
    FINISH_REASONS,
    KNOWN,
    MEMORY,
    METRICS,
    SOURCES,
)
from builtin_plugins.metric_sinks.prometheus.custom_buckets import with_custom_buckets
from builtin_plugins.metric_sinks.prometheus.instruments import Family, add_samples
from builtin_plugins.metric_sinks.prometheus.memory import gauges, histograms, infos, processes
from builtin_plugins.metric_sinks.prometheus.steps import StepMetrics
from builtin_plugins.metric_sinks.providers import Histogram, split_labels
from core.api import ConfigError, EngineConfig
from core.api.telemetry import CallStats, HttpStats, RequestStats, StepStats, TokenStats

FEATURE_NAMES: Final = frozenset(spec.name for spec in FEATURES)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES: Final = frozenset(
    {*range(200, 207), 301, 302, 303, 304, 307, 308, *range(400, 432), 499, 500, 501, 502, 503, 504}
)
_PREFIX_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")


class PrometheusSink:
    """Counts steps, tokens and requests in a registry of its own."""

    def __init__(self, config: EngineConfig) -> None:
        names = config.model.served_model_name or [config.model.model]
        self._prefix = _checked(config.options.get("metrics_prefix", "engine_"))
        ranks = local_ranks(config)
        self._labels = {"model_name": names[0], "engine": str(ranks[0])}
        self._cache_labels: dict[str, str] = {}
        self._infos: dict[str, dict[str, str]] = {}
        """Labels of the features' info metrics, by metric."""
        self._gauges: dict[str, float] = {}
        """Gauges and counters of features, by labelled name."""
        self._histograms: dict[str, Histogram] = {}
        """Histograms of features, by metric."""
        given = config.options.get("custom_histogram_buckets")
        specs = with_custom_buckets(METRICS, given)
        self._steps = StepMetrics(specs[: len(ENGINE)], ranks)
        families = {spec.name: Family(spec) for spec in specs[len(ENGINE) :]}
        self._families = families
        numbers = {name: family for name, family in families.items() if not family.spec.buckets}
        self._prompt = numbers["prompt_tokens"]
        self._by_source = numbers["prompt_tokens_by_source"]
        self._cached = numbers["prompt_tokens_cached"]
        self._generated = numbers["generation_tokens"]
        self._success = numbers["request_success"]
        self._http = numbers["http_requests"]
        self._calls, self._faults, self._seconds = (
            numbers[name] for name in ("tool_calls", "plugin_faults", "plugin_seconds")
        )
        for reason in FINISH_REASONS:
            self._success.set(0.0, reason)
        for known in KNOWN:
            self._calls.set(0.0, known)
        for source in SOURCES:
            self._by_source.set(0.0, source)
        self._observe = {
            name: family.histogram.observe
            for name, family in families.items()
            if family.spec.buckets
        }
        self._first_token, self._between = (
            self._observe[name]
            for name in ("time_to_first_token_seconds", "inter_token_latency_seconds")
        )
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self))
        ProcessCollector(registry=self._registry)

    def ready(self, config: EngineConfig) -> None:
        """Store the resolved cache settings."""
        cache = config.cache
        labels = {name: str(getattr(cache, name)) for name in type(cache).__dataclass_fields__}
        self._cache_labels = {**labels, "num_gpu_blocks": str(cache.num_gpu_blocks_override)}

    def step(self, stats: StepStats) -> None:
        """Count one engine step."""
        self._steps.step(stats)

    def tokens(self, stats: TokenStats) -> None:
        """Count the tokens of one step."""
        self._generated.add(stats.generated_tokens)
        # Sequences of one step have equal latencies.
        for seconds, times in Counter(stats.inter_token_s).items():
            self._between(seconds, times)
        for seconds in stats.first_token_s:
            self._first_token(seconds)
        if stats.prompt_tokens:
            self._prompt.add(stats.prompt_tokens)
            self._cached.add(stats.cached_tokens)
            self._by_source.add(stats.prompt_tokens - stats.cached_tokens, "local_compute")
            self._by_source.add(stats.cached_tokens, "local_cache_hit")

    def request(self, stats: RequestStats) -> None:
        """Count one ended request."""
        reason = stats.finish_reason
        self._success.add(1.0, reason if reason in FINISH_REASONS else "error")
        values = {
            "request_prompt_tokens": stats.prompt_tokens,
            "request_generation_tokens": stats.generated_tokens,
            "request_max_num_generation_tokens": stats.longest_output,
            "request_prefill_kv_computed_tokens": stats.prompt_tokens - stats.cached_tokens,
            "request_params_n": stats.n,
            "request_params_max_tokens": stats.max_tokens,
            "e2e_request_latency_seconds": stats.e2e_s,
            "request_queue_time_seconds": stats.queue_s,
            "request_inference_time_seconds": stats.inference_s,
            "request_prefill_time_seconds": stats.prefill_s,
            "request_decode_time_seconds": stats.decode_s,
        }
        if stats.decode_s is not None and stats.longest_output > 1:
            per_token_s = stats.decode_s / (stats.longest_output - 1)
            values["request_time_per_output_token_seconds"] = per_token_s
        for name, value in values.items():
            if value is not None:
                self._observe[name](value)

        for counted, value in stats.counts.items():
            name, _, label = counted.partition("/")
            if name in FEATURE_NAMES:
                family = self._families[name]
                if family.spec.buckets:
                    family.histogram.observe(value)
                else:
                    family.add(value, *((label,) if family.spec.labels else ()))

    def http(self, stats: HttpStats) -> None:
        """Count one HTTP request, by the template of its path."""
        method = stats.method if stats.method in METHODS else "other"
        status = str(stats.status) if stats.status in STATUSES else "other"
        self._http.add(1.0, stats.path or "other", method, status)
        self._observe["http_request_duration_seconds"](stats.duration_s)

    def calls(self, stats: CallStats) -> None:
        """Count the tool calls of an answer."""
        for known, count in zip(KNOWN, (stats.known, stats.unknown), strict=True):
            self._calls.add(count, known)

    def expose(self, health: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the metrics page and its content type."""
        state = self._families
        state["ready"].set(float(health.get("status") == "ready"))
        state["requests_open"].set(health.get("open_requests", 0))
        state["restarts"].set(health.get("restarts", 0))
        state["server_restarts"].set(health.get("server_restarts", 0))
        for sink in health.get("sinks", ()):
            state["sink_faults"].set(sink["faults"], sink["sink"])
        self._set_memory(health.get("memory") or {})
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def snapshots(self, health: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the time series of the page as objects."""
        from builtin_plugins.metric_sinks.prometheus.snapshots import snapshots  # lazy: rarely used

        return snapshots(self.expose(health)[0])

    def _set_memory(self, memory: Mapping[str, Any]) -> None:
        """Set memory, plugin faults and plugin times of this process and of the engine's.

        A process that has ended has no memory; the numbers of its plugins stay until a process of
        the same name starts.
        """
        bytes_, limits, resident = (self._families[spec.name] for spec in MEMORY)
        for family in (bytes_, limits, resident):
            family.values.clear()
        engine = memory.get("engine") or ()
        self._infos = infos(engine)
        self._gauges = gauges(engine)
        self._histograms = histograms(engine)
        for found in processes(
            memory.get("owners") or {}, engine, memory.get("faults"), memory.get("seconds")
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
        yield from self._steps.metrics(self._prefix, self._labels)
        for name, family in self._families.items():
            if name != "cache_config_info":
                yield family.metric(self._prefix, self._labels)
            elif self._cache_labels:  # known when the engine has started
                info = Metric(self._prefix + name, family.spec.text, "gauge")
                info.add_sample(
                    self._prefix + name,
                    {"engine": self._labels["engine"], **self._cache_labels},
                    1.0,
                )
                yield info
        for name, labels in self._infos.items():
            metric = Metric(self._prefix + name, "Info of a feature.", "gauge")
            metric.add_sample(self._prefix + name, {**self._labels, **labels}, 1.0)
            yield metric
        yield from self._feature_gauges()
        for name, histogram in self._histograms.items():
            metric = Metric(self._prefix + name, "Histogram of a feature.", "histogram")
            add_samples(metric, self._prefix + name, histogram, self._labels)
            yield metric

    def _feature_gauges(self) -> Iterable[Metric]:
        """Return the gauges and counters of features."""
        metrics: dict[str, Metric] = {}
        for labelled_name, value in self._gauges.items():
            name, labels = split_labels(labelled_name)
            sample = self._prefix + name
            if name not in metrics:
                kind = "counter" if name.endswith("_total") else "gauge"
                family = sample.removesuffix("_total")
                metrics[name] = Metric(family, "Number of a feature.", kind)
            metrics[name].add_sample(sample, {**self._labels, **labels}, value)
        return metrics.values()


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
