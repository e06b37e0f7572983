"""Route of `engine explain`, its scheduler extension and its metric sink."""

from __future__ import annotations

from functools import partial
from typing import Any

from core.api import EngineConfig, Entry, Registry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.explain.routes:ExplainRoutes"
    return [Entry("explain", target, "what became of a request", requires=("fastapi",))]


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    target = "builtin_plugins.routes.explain.history:RecentRequests"
    return [
        Entry(
            "explain",
            target,
            "recent ended and refused requests, for `engine explain`",
        )
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("enable_operator_routes"):
        return []
    # lazy: for a quick start
    from builtin_plugins.metric_sinks.api import plugin_seconds
    from builtin_plugins.routes.explain.history import RequestHistories

    return [RequestHistories(plugin_s=partial(plugin_seconds, registry))]
