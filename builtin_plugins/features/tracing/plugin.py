"""Options of tracing, and its parts in the API process, the scheduler and the workers.

Only the API process needs OpenTelemetry's library, and only with an endpoint.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    endpoint = (
        "Where spans go: http://HOST:4318/v1/traces (OTLP over HTTP), or grpc://HOST:4317; needs "
        "opentelemetry-sdk and an exporter."
    )
    detailed = "Further times in spans: `model` (forward passes), `worker` (whole steps), or `all`."
    return [
        Option("otlp_traces_endpoint", str | None, None, endpoint),
        Option(
            "collect_detailed_traces",
            list[str] | None,
            None,
            detailed,
            needs=("otlp_traces_endpoint",),
        ),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    from builtin_plugins.features.tracing.settings import Detail, check  # lazy: quick start

    Detail.of(config)
    if endpoint := config.options.get("otlp_traces_endpoint"):
        check(endpoint)


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [
        Entry(
            "tracing",
            "builtin_plugins.features.tracing.serving:TraceSink",
            "a span for each ended request",
        )
    ]


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.features.tracing.serving:TracedRequests"
    return [
        Entry(
            "tracing",
            target,
            "a span for each HTTP request (--otlp-traces-endpoint)",
            requires=("fastapi",),
        )
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.admission import Admission  # lazy: an optional library
    from builtin_plugins.features.tracing.tracer import shared_tracer

    return [Admission(shared_tracer(registry, config), config)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.scheduling import ResidencyTracker
    from builtin_plugins.features.tracing.settings import Detail  # lazy: quick start

    return [ResidencyTracker(detailed=bool(Detail.of(config)))]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.settings import Detail  # lazy: quick start
    from builtin_plugins.features.tracing.worker import StepTimer

    detail = Detail.of(config)
    return [StepTimer(detail)] if detail else []
