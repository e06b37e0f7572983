"""LoRA: the options, and the halves at the edge, beside the scheduler and in workers."""

from __future__ import annotations

from typing import Annotated, Any

from builtin_plugins.features.lora.settings import MOST_ADAPTER_BYTES, Rank, Settings
from core.api import EngineConfig, Option, Within, hookimpl

Json = dict[str, Any]


@hookimpl
def engine_options() -> list[Option]:
    count = Annotated[int, Within(1, 1 << 16)]
    held = "Adapters kept in host memory, those in slots among them; at least --max-loras, which is the default (0 too)."
    return [
        Option("enable_lora", bool, False, "Serve LoRA adapters beside the model."),
        Option("max_loras", count, 1, "Adapters in one batch."),
        Option(
            "max_lora_rank",
            Rank,
            16,
            "Largest rank of an adapter; what is set takes no memory by itself.",
        ),
        Option("max_cpu_loras", Annotated[int, Within(-1, 1 << 20)] | None, None, held),
        Option(
            "fully_sharded_loras",
            bool,
            False,
            "Ranks share out both factors of an adapter, not only one.",
        ),
        Option(
            "lora_dtype",
            str,
            "auto",
            "Of adapters in memory: auto (the model's), bfloat16, float16 or float32.",
        ),
        Option(
            "lora_modules",
            list[str] | None,
            None,
            "Adapters from the start: NAME=PATH, or JSON. Switches LoRA on.",
        ),
        Option(
            "lora_roots",
            list[str] | None,
            None,
            "Folders that adapters named at run time may lie in; default: any.",
        ),
        Option(
            "max_lora_bytes",
            Annotated[int, Within(1, 1 << 60)],
            MOST_ADAPTER_BYTES,
            "Largest file of an adapter.",
        ),
        Option(
            "default_mm_loras",
            Json | None,
            None,
            "Adapters by modality; refused until there are any but text.",
        ),
    ]


@hookimpl
def engine_add_hooks() -> list[Any]:
    from builtin_plugins.features.lora import hookspecs  # lazy: asked once

    return [hookspecs]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    if Settings.of(config) is None:
        return []
    from builtin_plugins.features.lora.admission import Admission  # lazy: start-up stays quick
    from builtin_plugins.features.lora.serving import adapters_of

    return [Admission(adapters_of(config, registry))]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    settings = Settings.of(config)
    if settings is None:
        return []
    from builtin_plugins.features.lora.scheduling import Slots  # lazy: start-up stays quick
    from core.contracts.infos import infos_of

    parallel = config.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    slots = Slots(settings.max_loras, settings.max_held, num_ranks)
    infos_of(registry)["lora_requests_info"] = slots.info
    return [slots]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    settings = Settings.of(config)
    if settings is None:
        return []
    from builtin_plugins.features.lora.worker import Deltas  # lazy: only workers need torch
    from core.contracts.memory import memory_of

    return [Deltas(settings, memory_of(registry))]
