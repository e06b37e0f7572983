"""KV metrics: the options `--kv-cache-metrics` and `--kv-cache-metrics-sample`."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import ConfigError, EngineConfig, Option, Range, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_cache_metrics",
            bool,
            False,
            "Measure how long cached blocks stay and how soon they are used again.",
        ),
        Option(
            "kv_cache_metrics_sample",
            Annotated[float, Range(0, 1)],
            0.01,
            "Share of blocks that are sampled.",
            needs=("kv_cache_metrics",),
        ),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("kv_cache_metrics"):
        return []
    share = config.options["kv_cache_metrics_sample"]
    if not share:
        raise ConfigError("--kv-cache-metrics-sample: got 0; expected more than 0, up to 1.")
    from builtin_plugins.features.kv_metrics.residency import BlockResidency  # lazy: start-up
    from builtin_plugins.metric_sinks.api import histogram_providers

    residency = BlockResidency(share)
    histogram_providers(registry)["kv_metrics"] = residency.histograms
    return [residency]
