"""Structured outputs: the option, and what happens at admission, in the scheduler and in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import EngineConfig, Option, hookimpl

if TYPE_CHECKING:
    from core.api import AdmissionExtension, RunnerExtension


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "structured_outputs_config",
            dict[str, Any],
            {},
            "How outputs are held to a form: backend (auto), disable_fallback, disable_any_whitespace, "
            "disable_additional_properties, reasoning_parser, enable_in_reasoning, "
            "compile_timeout_s, cache_bytes.",
        )
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[AdmissionExtension]:
    from builtin_plugins.structured_outputs.admission import Admission  # lazy: start-up stays quick

    return [Admission(config, registry)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.structured_outputs.grammars import grammars_of  # lazy: start-up stays quick
    from builtin_plugins.structured_outputs.scheduling import Gate

    return [Gate(grammars_of(config, registry))]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[RunnerExtension]:
    from builtin_plugins.structured_outputs.grammars import grammars_of  # lazy: only workers need torch
    from builtin_plugins.structured_outputs.masks import MaskMaker

    return [MaskMaker(grammars_of(config, registry))]
