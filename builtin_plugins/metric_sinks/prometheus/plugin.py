"""Metrics for Prometheus, at `/metrics`."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    target = "builtin_plugins.metric_sinks.prometheus.sink:PrometheusSink"
    return [
        Entry(
            "prometheus",
            target,
            "counters and histograms for Prometheus",
            requires=("prometheus-client",),
        )
    ]


@hookimpl
def engine_options() -> list[Option]:
    help = "What names of metrics begin with; `vllm:` gives the names vLLM's dashboards know."
    return [
        Option("metrics_prefix", str, "engine_", help),
        Option(
            "custom_histogram_buckets",
            dict[str, Any] | None,
            None,
            "Upper bounds of histograms, by family: request_latency, time_to_first_token, "
            "inter_token_latency, iteration_tokens, request_params_n, request_tokens.",
        ),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    given = config.options.get("custom_histogram_buckets")
    if given:
        # lazy: start-up stays quick
        from builtin_plugins.metric_sinks.prometheus.custom_buckets import with_custom_buckets

        with_custom_buckets((), given)


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.metric_sinks.prometheus.extensions import (
        SchedulerMemory,
        engine_rank,
    )  # lazy: start-up stays quick

    return (
        []
        if config.observability.disable_log_stats
        else [SchedulerMemory(registry, engine_rank(config))]
    )


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.metric_sinks.prometheus.extensions import (
        WorkerMemory,
        engine_rank,
    )  # lazy: start-up stays quick

    return (
        []
        if config.observability.disable_log_stats
        else [WorkerMemory(registry, engine_rank(config))]
    )
