"""The metrics that belong to an engine: one series for each of a server's engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from builtin_plugins.metric_sinks.prometheus.catalogue import (
    FEATURES,
    FINISH_REASONS,
    SOURCES,
    MetricSpec,
)
from builtin_plugins.metric_sinks.prometheus.instruments import Family
from core.api.telemetry import RequestStats, StepStats, TokenStats

FEATURE_NAMES: Final = frozenset(spec.name for spec in FEATURES)


class EngineSeries:
    """Counts the steps, tokens and requests of one engine."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        self.families: Final = {spec.name: Family(spec) for spec in specs}
        numbers = {n: family for n, family in self.families.items() if not family.spec.buckets}
        self._observe = {
            name: family.histogram.observe
            for name, family in self.families.items()
            if family.spec.buckets
        }
        self._running = numbers["num_requests_running"]
        self._waiting = numbers["num_requests_waiting"]
        self._kv_usage = numbers["kv_cache_usage_perc"]
        self._queries = numbers["prefix_cache_queries"]
        self._hits = numbers["prefix_cache_hits"]
        self._preemptions = numbers["num_preemptions"]
        self._step_s = self._observe["step_time_seconds"]
        self._step_tokens = self._observe["iteration_tokens_total"]
        self._prompt = numbers["prompt_tokens"]
        self._by_source = numbers["prompt_tokens_by_source"]
        self._cached = numbers["prompt_tokens_cached"]
        self._generated = numbers["generation_tokens"]
        self._first_token = self._observe["time_to_first_token_seconds"]
        self._between = self._observe["inter_token_latency_seconds"]
        self._success = numbers["request_success"]
        self._corrupted = numbers["corrupted_requests"]
        for reason in FINISH_REASONS:
            self._success.set(0.0, reason)
        for source in SOURCES:
            self._by_source.set(0.0, source)

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

    def tokens(self, stats: TokenStats) -> None:
        """Count the tokens of one delivery."""
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
        if stats.is_corrupted:
            self._corrupted.add(1.0)
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
        self._count_features(stats.counts)

    def _count_features(self, counts: Mapping[str, float]) -> None:
        """Count what features report of a request."""
        for counted, value in counts.items():
            name, _, label = counted.partition("/")
            if name in FEATURE_NAMES:
                family = self.families[name]
                if family.spec.buckets:
                    family.histogram.observe(value)
                else:
                    family.add(value, *((label,) if family.spec.labels else ()))
