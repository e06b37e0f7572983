"""The operators' route behind `engine explain`, and the two that remember: beside the scheduler,
and at the edge.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.explain.routes:ExplainRoutes"
    return [Entry("explain", target, "what became of a request", requires=("fastapi",))]


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    target = "builtin_plugins.routes.explain.ended:Ended"
    return [
        Entry(
            "explain",
            target,
            "remembers the last requests that ended or were refused, for `engine explain`",
        )
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("enable_operator_routes"):
        return []
    from builtin_plugins.routes.explain.histories import Histories  # lazy: start-up stays quick
    from core.contracts.times import times_of

    return [Histories(plugin_s=times_of(registry).so_far)]
