"""Engine measurements as Prometheus metrics.

Names are an interface: dashboards depend on them, a test holds the list. Label values come from fixed sets, so
that no client can make new time series.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from core.api import EngineConfig, RequestStats, StepStats

FINISH_REASONS: Final = ("stop", "length", "abort", "error")
_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class PrometheusSink:
    """Counts steps and requests in a registry of its own."""

    def __init__(self, config: EngineConfig) -> None:
        model = config.model.served_model_name
        self._registry = CollectorRegistry()
        self._labels = {"model_name": (model or [config.model.model])[0]}
        self._running = self._gauge("num_requests_running", "Requests that run.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Used share of KV blocks, 0 to 1.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed.")
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        self._preemptions = self._counter("num_preemptions", "Requests preempted.")
        self._queried = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        finished = Counter(
            "engine_request_success",
            "Requests that ended, by reason.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        self._finished = {reason: finished.labels(**self._labels, finished_reason=reason) for reason in FINISH_REASONS}
        self._step_s = self._histogram("step_time_seconds", "Time of one engine step.", _SECONDS)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self._tpot = self._histogram("time_per_output_token_seconds", "Mean time per token after the first.", _SECONDS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _LONG_SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "Time spent waiting.", _LONG_SECONDS)
        self._prompt_sizes = self._histogram("request_prompt_tokens", "Prompt tokens per request.", _TOKENS)
        self._output_sizes = self._histogram("request_generation_tokens", "Generated tokens per request.", _TOKENS)

    def step(self, stats: StepStats) -> None:
        """Count one engine step; a step of no time only says what is left after an abort."""
        if stats.step_s:
            self._step_s.observe(stats.step_s)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_usage)
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._generated.inc(stats.generated_tokens)
        self._preemptions.inc(stats.preemptions)
        self._queried.inc(stats.queried_tokens)
        self._hits.inc(stats.cached_tokens)

    def request(self, stats: RequestStats) -> None:
        """Count one finished request."""
        self._finished.get(stats.finish_reason, self._finished["error"]).inc()
        self._e2e.observe(stats.e2e_s)
        self._prompt_sizes.observe(stats.prompt_tokens)
        self._output_sizes.observe(stats.generated_tokens)
        if stats.queue_s is not None:
            self._queue.observe(stats.queue_s)
        if stats.ttft_s is not None:
            self._ttft.observe(stats.ttft_s)
            if stats.generated_tokens > 1:
                self._tpot.observe((stats.e2e_s - stats.ttft_s) / (stats.generated_tokens - 1))

    def expose(self) -> tuple[bytes, str]:
        """Return the text Prometheus scrapes, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"engine_{name}", text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"engine_{name}", text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"engine_{name}", text, list(self._labels), registry=self._registry, buckets=buckets
        )  # fmt: skip
        return histogram.labels(**self._labels)
