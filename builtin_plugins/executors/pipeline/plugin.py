"""Pipeline stages that overlap: the layers of each stage, and steps with rows of their own."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, Registry, hookimpl


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    # Imported lazily for a fast start.
    from builtin_plugins.executors.pipeline.partition import layer_partition

    layer_partition(config)


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Layers of each pipeline stage, such as 3,5 for two stages of a model with 8 layers; "
        "default: equal numbers, the first stages get the rest."
    )
    return [Option("pipeline_layer_partition", str | None, None, text)]


@hookimpl(trylast=True)  # it divides the rows that the others let decode
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.executors.pipeline.partition import layer_partition
    from builtin_plugins.executors.pipeline.scheduling import PipelineScheduler

    layer_partition(config)  # with one stage, no executor reads it
    stages = config.parallel.pipeline_parallel_size
    return [PipelineScheduler(config.scheduler.max_num_seqs or 1, stages)] if stages > 1 else []
