"""Routes for operators, behind `--enable-operator-routes`, and what pauses, profiles and puts to
sleep for them.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.routes:OperatorRoutes"
    return [Entry("operator", target, "pausing, caches, configuration", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    profiler = 'For /start_profile and /stop_profile: {"torch_profiler_dir": DIR}, and how torch\'s profiler is to look.'
    calls = "Calls of features (feature.verb) that /collective_rpc may make."
    return [
        Option(
            "enable_operator_routes",
            bool,
            False,
            "Serve routes for operators, with the key of all others.",
        ),
        Option("operator_calls", list[str], [], calls),
        Option(
            "enable_sleep_mode",
            bool,
            False,
            "Let /sleep give memory back until /wake_up; likewise LLM.sleep().",
        ),
        Option("profiler_config", dict[str, Any], {}, profiler),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    pauses = bool(config.options.get("enable_operator_routes"))
    halves = list[Any]()
    if pauses:
        from builtin_plugins.routes.operator.pausing import Pausing  # lazy: start-up stays quick

        halves.append(Pausing(config.scheduler.max_num_seqs or 1))
    if config.options.get("enable_sleep_mode"):
        from builtin_plugins.routes.operator import (
            sleep_calls,
            sleeping,
        )  # lazy: start-up stays quick
        from core.contracts.infos import numbers_of
        from core.contracts.variants import methods_of

        half = sleeping.Sleeping(parks=pauses)
        halves.append(half)
        numbers_of(registry)[sleeping.NAME] = half.numbers
        methods_of(registry).update(sleep=sleep_calls.sleep, wake_up=sleep_calls.wake_up)
    return halves


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.routes.operator.profiling import (
        Profiling,
        Settings,
    )  # lazy: start-up stays quick
    from builtin_plugins.routes.operator.sleeping import Releasing

    halves: list[Any] = [Releasing(registry)] if config.options.get("enable_sleep_mode") else []
    if not config.options.get("enable_operator_routes"):
        return halves
    settings = Settings.of(config.options.get("profiler_config") or {})
    return [*halves, Profiling(settings)] if settings else halves
