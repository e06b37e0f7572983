"""Structured outputs: the option, and the extensions of admission, scheduler and worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import EngineConfig, Option, Registry, hookimpl

if TYPE_CHECKING:
    from core.api.plugins import LoadedRegistry


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "structured_outputs_config",
            dict[str, Any],
            {},
            "How outputs are constrained: backend (auto), disable_fallback, "
            "disable_any_whitespace, disable_additional_properties, reasoning_parser, "
            "enable_in_reasoning, compile_timeout_s, compile_memory_bytes, mask_budget_s, "
            "output_budget_s, max_constraints, cache_bytes, warm_up.",
        )
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    # lazy: start-up stays quick
    from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig

    StructuredOutputsConfig.of(config).check_names(config, registry)


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # lazy: start-up stays quick
    from builtin_plugins.features.structured_outputs.admission import Admission
    from builtin_plugins.features.structured_outputs.grammar_pool import grammar_pool_of

    return [Admission(config, registry, grammar_pool_of(config, registry))]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig) -> list[Any]:
    # lazy: start-up stays quick
    from builtin_plugins.features.structured_outputs.scheduling import MaskScheduler

    return [MaskScheduler(config.parallel.tensor_parallel_size)]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: LoadedRegistry) -> list[Any]:
    # lazy: only workers need torch
    from builtin_plugins.features.structured_outputs.grammar_pool import grammar_pool_of
    from builtin_plugins.features.structured_outputs.worker import MaskWorker

    serves = registry.hooks.process != "main" and config.model.runner != "pooling"
    return [MaskWorker(grammar_pool_of(config, registry), serves=serves)]
