"""The options, and the halves: in front of the routes, at the edge, beside the scheduler, on every
rank.

Only what runs in the serving process needs OpenTelemetry's library, and only when an endpoint is
given.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    endpoint = (
        "Where spans go: http://HOST:4318/v1/traces (OTLP over HTTP), or grpc://HOST:4317; needs "
        "opentelemetry-sdk and an "
        "exporter."
    )
    detailed = "Further times in spans: `model` (forward passes), `worker` (whole steps), or `all`."
    return [
        Option("otlp_traces_endpoint", str | None, None, endpoint),
        Option("collect_detailed_traces", list[str] | None, None, detailed),
    ]


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [
        Entry(
            "tracing",
            "builtin_plugins.features.tracing.sink:TraceSink",
            "a span for each request that has ended",
        )
    ]


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.features.tracing.front:TracedRequests"
    return [
        Entry(
            "tracing",
            target,
            "a span for each HTTP request (--otlp-traces-endpoint)",
            requires=("fastapi",),
        )
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.admission import Admission  # lazy: an optional library
    from builtin_plugins.features.tracing.tracer import tracer_of

    return [Admission(tracer_of(registry, config), config)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.detail import Detail  # lazy: start-up stays quick
    from builtin_plugins.features.tracing.scheduling import Stays

    return [Stays(detailed=bool(Detail.of(config)))]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("otlp_traces_endpoint"):
        return []
    from builtin_plugins.features.tracing.detail import Detail  # lazy: start-up stays quick
    from builtin_plugins.features.tracing.timing import StepTimes

    detail = Detail.of(config)
    return [StepTimes(detail)] if detail else []
