"""The layers of each pipeline stage, as `--pipeline-layer-partition` sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.api import ConfigError, EngineConfig

if TYPE_CHECKING:
    from core.api import Registry
    from core.api.models import ModelSource

FLAG: Final = "--pipeline-layer-partition"


def layer_partition(config: EngineConfig) -> tuple[int, ...]:
    """Return the number of layers of each stage; empty: equal numbers.

    Raises `ConfigError` unless there is a positive number for each stage.
    """
    text: str | None = config.options.get("pipeline_layer_partition")
    if text is None:
        return ()
    stages = config.parallel.pipeline_parallel_size
    parts = text.split(",")
    counts = tuple(int(part) for part in parts if part.strip().isdecimal())
    if len(counts) == len(parts) == stages and min(counts) > 0:
        return counts
    raise ConfigError(
        f"{FLAG}: got {text!r}; expected a number of layers, 1 or more, for each of the {stages} "
        "stages, with commas between them. Change it, or --pipeline-parallel-size."
    )


def check_partition(config: EngineConfig, source: ModelSource, registry: Registry) -> None:
    """Raise `ConfigError` if the stages together do not have the layers of the model."""
    counts = layer_partition(config)
    if not counts:
        return
    # Imported lazily: torch is slow to import, and features read the numbers without it.
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.loading import read_model

    spec, _ = read_model(config, source, registry)
    total = len(spec.layers) if isinstance(spec, DecoderSpec) else 0
    if sum(counts) != total:
        raise ConfigError(
            f"{FLAG}: got {','.join(map(str, counts))}, {sum(counts)} layers; expected the "
            f"model's {total}. Change the numbers so that their sum is {total}."
        )
