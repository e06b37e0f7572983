"""Operator routes with `--enable-operator-routes`, and their scheduler and worker extensions."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.routes:OperatorRoutes"
    return [Entry("operator", target, "pausing, caches, configuration", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    profiler = (
        'Serve /start_profile and /stop_profile: {"torch_profiler_dir": DIR}, and options of '
        "torch's profiler."
    )
    calls = "Calls of features (feature.verb) that /collective_rpc may make."
    return [
        Option(
            "enable_operator_routes",
            bool,
            False,
            "Serve routes for operators, with the key of all others.",
        ),
        Option("operator_calls", list[str], [], calls, needs=("enable_operator_routes",)),
        Option(
            "enable_sleep_mode",
            bool,
            False,
            "Let /sleep and LLM.sleep() release memory until /wake_up.",
        ),
        Option("profiler_config", dict[str, Any], {}, profiler),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    from builtin_plugins.routes.operator.profiling import Settings  # lazy: quick start

    Settings.of(config.options.get("profiler_config") or {})


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.routes.operator import profiling  # lazy: quick start
    from core.api.features import llm_methods

    pauses = bool(config.options.get("enable_operator_routes"))
    extensions = list[Any]()
    llm_methods(registry).update(
        start_profile=profiling.start_profile, stop_profile=profiling.stop_profile
    )
    if pauses:
        from builtin_plugins.routes.operator.pausing import PauseExtension  # lazy: quick start

        extensions.append(PauseExtension(config.scheduler.max_num_seqs or 1))
    if config.options.get("enable_sleep_mode"):
        from builtin_plugins.metric_sinks.api import gauge_providers
        from builtin_plugins.routes.operator import sleep  # lazy: quick start

        extension = sleep.SleepExtension(parks=pauses)
        extensions.append(extension)
        gauge_providers(registry)[sleep.NAME] = extension.numbers
        llm_methods(registry).update(
            sleep=sleep.sleep,
            wake_up=sleep.wake_up,
            release_kv_cache_memory=sleep.release_kv_cache_memory,
        )
    return extensions


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # lazy: quick start
    from builtin_plugins.routes.operator.profiling import Settings, StepProfiler
    from builtin_plugins.routes.operator.sleep import MemoryReleaser

    extensions: list[Any] = []
    if config.options.get("enable_sleep_mode"):
        extensions.append(MemoryReleaser(registry))
    settings = Settings.of(config.options.get("profiler_config") or {})
    if settings is not None:
        extensions.append(StepProfiler(settings, config.options.get("data_parallel_rank")))
    return extensions
