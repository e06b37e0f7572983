"""The playground: a page at `/playground`, its counters, and what it shows of a request."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Registry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.playground.routes:PlaygroundRoutes"
    return [
        Entry(
            "playground", target, "a page to chat, and to watch the engine", requires=("fastapi",)
        )
    ]


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    target = "builtin_plugins.routes.playground.counters:Totals"
    return [Entry("playground", target, "totals of steps and tokens for the playground")]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # lazy: quick start
    from builtin_plugins.routes.playground.counters import BlockCounter
    from builtin_plugins.routes.playground.offer import is_offered

    return [BlockCounter(registry)] if is_offered(config, registry) else []
