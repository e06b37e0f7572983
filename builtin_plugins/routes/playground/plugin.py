"""The playground: a page at `/playground`, what it shows, and where that is counted.

Loads only when named.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, hookimpl


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
    target = "builtin_plugins.routes.playground.totals:Totals"
    return [Entry("playground", target, "totals of steps and tokens for the playground")]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.routes.playground.blocks import Blocks  # lazy: start-up stays quick

    return [Blocks(registry)]
