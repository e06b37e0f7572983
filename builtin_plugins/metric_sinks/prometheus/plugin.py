"""Counts for Prometheus, shown at `/metrics`."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    target = "builtin_plugins.metric_sinks.prometheus.sink:PrometheusSink"
    return [Entry("prometheus", target, "counters and histograms for Prometheus", requires=("prometheus-client",))]


@hookimpl
def engine_options() -> list[Option]:
    help = "What names of metrics begin with; `vllm:` gives the names vLLM's dashboards know."
    return [Option("metrics_prefix", str, "engine_", help)]
