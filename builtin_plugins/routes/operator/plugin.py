"""Routes for operators, behind `--enable-operator-routes`, and what pauses, profiles and puts to sleep for them."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.routes:OperatorRoutes"
    return [Entry("operator", target, "pausing, caches, configuration", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    profiler = (
        'For /start_profile and /stop_profile: {"torch_profiler_dir": DIR}, and how torch\'s profiler is to look.'
    )
    calls = "Calls of features (feature.verb) that /collective_rpc may make."
    return [
        Option("enable_operator_routes", bool, False, "Serve routes for operators, with the key of all others."),
        Option("operator_calls", list[str], [], calls),
        Option("enable_sleep_mode", bool, False, "Let /sleep give the KV cache's memory back until /wake_up."),
        Option("profiler_config", dict[str, Any], {}, profiler),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("enable_operator_routes"):
        return []
    from builtin_plugins.routes.operator.pausing import Pausing  # lazy: start-up stays quick

    pausing = Pausing(config.scheduler.max_num_seqs or 1)
    if not config.options.get("enable_sleep_mode"):
        return [pausing]
    from builtin_plugins.routes.operator.sleeping import Sleeping  # lazy: start-up stays quick

    return [pausing, Sleeping()]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if not config.options.get("enable_operator_routes"):
        return []
    from builtin_plugins.routes.operator.profiling import Profiling, Settings  # lazy: start-up stays quick
    from builtin_plugins.routes.operator.sleeping import Releasing

    settings = Settings.of(config.options.get("profiler_config") or {})
    halves: list[Any] = [Releasing()] if config.options.get("enable_sleep_mode") else []
    return [*halves, Profiling(settings)] if settings else halves
