"""`--kv-cache-metrics` and its sample."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import ConfigError, EngineConfig, Option, Within, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_cache_metrics",
            bool,
            False,
            "Measure how long cached blocks stay and how soon they are wanted again.",
        ),
        Option(
            "kv_cache_metrics_sample",
            Annotated[float, Within(0, 1)],
            0.01,
            "Share of blocks that are looked at.",
        ),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("kv_cache_metrics"):
        return []
    share = config.options["kv_cache_metrics_sample"]
    if not share:
        raise ConfigError("--kv-cache-metrics-sample 0 looks at no block; give more, up to 1.")
    from builtin_plugins.features.kv_metrics.residency import (
        Residency,  # lazy: start-up stays quick
    )
    from core.contracts.infos import spreads_of

    residency = Residency(share)
    spreads_of(registry)["kv_metrics"] = residency.spreads
    return [residency]
