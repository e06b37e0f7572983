"""Routes for operators, behind `--enable-operator-routes`, and what pauses the engine for them."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.routes:OperatorRoutes"
    return [Entry("operator", target, "pausing, caches, configuration", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    calls = "Calls of features (feature.verb) that /collective_rpc may make."
    return [
        Option("enable_operator_routes", bool, False, "Serve routes for operators, with the key of all others."),
        Option("operator_calls", list[str], [], calls),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("enable_operator_routes"):
        return []
    from builtin_plugins.routes.operator.pausing import Pausing  # lazy: start-up stays quick

    return [Pausing(config.scheduler.max_num_seqs or 1)]
