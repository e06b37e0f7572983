"""LoRA: options, and the admission, scheduling and worker halves."""

from __future__ import annotations

from typing import Annotated, Any, Final

from builtin_plugins.features.lora.settings import DEFAULT_MAX_BYTES, Rank, Settings
from core.api import EngineConfig, Option, Range, Registry, hookimpl

Json = dict[str, Any]
SWITCHES: Final = ("enable_lora", "lora_modules")
"""Settings that turn LoRA on."""


@hookimpl
def engine_options() -> list[Option]:
    count = Annotated[int, Range(1, 1 << 16)]
    held = (
        "Adapters in host memory, slots included; at least --max-loras, which is the default (0 "
        "too)."
    )
    return [
        Option("enable_lora", bool, False, "Serve LoRA adapters with the model."),
        Option("max_loras", count, 1, "Adapters in one batch.", needs=SWITCHES),
        Option(
            "max_lora_rank",
            Rank,
            16,
            "Largest rank of an adapter; the setting alone takes no memory.",
            needs=SWITCHES,
        ),
        Option(
            "max_cpu_loras", Annotated[int, Range(-1, 1 << 20)] | None, None, held, needs=SWITCHES
        ),
        Option(
            "fully_sharded_loras",
            bool,
            False,
            "Shard both factors of an adapter, not only one.",
            needs=SWITCHES,
        ),
        Option(
            "lora_dtype",
            str,
            "auto",
            "Dtype of adapters in memory: auto (the model's), bfloat16, float16 or float32.",
            needs=SWITCHES,
        ),
        Option(
            "lora_modules",
            list[str] | None,
            None,
            "Adapters to load at startup: NAME=PATH, or JSON. Enables LoRA.",
        ),
        Option(
            "lora_roots",
            list[str] | None,
            None,
            "Folders that run-time adapters may lie in; default: any.",
            needs=SWITCHES,
        ),
        Option(
            "max_lora_bytes",
            Annotated[int, Range(1, 1 << 60)],
            DEFAULT_MAX_BYTES,
            "Maximum file size of an adapter.",
            needs=SWITCHES,
        ),
        Option(
            "default_mm_loras",
            Json | None,
            None,
            "Adapters by modality; rejected, as only text is supported.",
        ),
    ]


@hookimpl
def engine_add_hooks() -> list[Any]:
    from builtin_plugins.features.lora import hookspecs  # lazy: called once

    return [hookspecs]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    Settings.of(config)


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if Settings.of(config) is None:
        return []
    from builtin_plugins.features.lora.admission import Admission  # lazy: start-up stays quick
    from builtin_plugins.features.lora.serving import adapters_of

    return [Admission(adapters_of(config, registry))]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    settings = Settings.of(config)
    if settings is None:
        return []
    from builtin_plugins.features.lora.scheduling import AdapterSlots  # lazy: start-up stays quick
    from builtin_plugins.metric_sinks.api import info_providers

    parallel = config.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    slots = AdapterSlots(settings.max_loras, settings.max_cpu_loras, num_ranks)
    info_providers(registry)["lora_requests_info"] = slots.info
    return [slots]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    settings = Settings.of(config)
    if settings is None:
        return []
    from builtin_plugins.features.lora.worker import LoraWorker  # lazy: only workers need torch
    from builtin_plugins.metric_sinks.api import memory_owners

    return [LoraWorker(settings, memory_owners(registry))]
