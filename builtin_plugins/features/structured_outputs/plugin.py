"""Structured outputs: the option, and what happens at admission, in the scheduler and in the
worker.
"""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "structured_outputs_config",
            dict[str, Any],
            {},
            "How outputs are held to a form: backend (auto), disable_fallback, "
            "disable_any_whitespace, "
            "disable_additional_properties, reasoning_parser, enable_in_reasoning, "
            "compile_timeout_s, compile_memory_bytes, mask_budget_s, output_budget_s, "
            "max_constraints, cache_bytes, "
            "warm_up.",
        )
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.structured_outputs.admission import (
        Admission,  # lazy: start-up stays quick
    )
    from builtin_plugins.features.structured_outputs.keepers import keepers_of

    return [Admission(config, registry, keepers_of(config, registry))]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig) -> list[Any]:
    from builtin_plugins.features.structured_outputs.scheduling import (
        Gate,  # lazy: start-up stays quick
    )

    return [Gate(config.parallel.tensor_parallel_size)]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.structured_outputs.keepers import (
        keepers_of,
    )  # lazy: only workers need torch
    from builtin_plugins.features.structured_outputs.masks import MaskMaker

    serves = registry.hooks.process != "main" and config.model.runner != "pooling"
    return [MaskMaker(keepers_of(config, registry), serves=serves)]
