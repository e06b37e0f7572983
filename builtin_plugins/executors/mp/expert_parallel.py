"""Checks of `--enable-expert-parallel`: whole experts of a layer on each tensor-parallel rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.api import ConfigError

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.models import ModelSource

FLAG: Final = "--enable-expert-parallel"


def check_settings(config: EngineConfig) -> None:
    """Raise `ConfigError` for settings that have no effect, or that exclude each other."""
    options = config.options
    placement = options.get("expert_placement_strategy", "linear")
    if not options.get("enable_expert_parallel"):
        if placement != "linear":
            raise ConfigError(
                f"--expert-placement-strategy: got {placement}; expected it with {FLAG}. Add "
                f"{FLAG}, or remove it."
            )
        return
    if config.parallel.tensor_parallel_size == 1:
        raise ConfigError(
            f"{FLAG}: got True; expected tensor-parallel ranks, which share the experts of each "
            "layer. Set --tensor-parallel-size, or remove it."
        )
    if options.get("enable_lora"):
        raise ConfigError(
            f"{FLAG}: got True; expected no adapters of experts. Remove it, or --enable-lora."
        )


def check_experts(config: EngineConfig, source: ModelSource, registry: Registry) -> None:
    """Raise `ConfigError` like `check_settings`, and for a model without experts."""
    check_settings(config)
    if not config.options.get("enable_expert_parallel"):
        return
    # Imported lazily: torch is slow to import.
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.loading import read_model

    spec, _ = read_model(config, source, registry)
    if not (isinstance(spec, DecoderSpec) and spec.has_experts):
        raise ConfigError(
            f"{FLAG}: got True; expected a model with experts, not {source.architecture}. "
            "Remove it."
        )
