"""Checkpoints of heads and of recorded outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from core.api import ConfigError

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import SpeculativeConfig
    from core.api import EngineConfig, Registry
    from core.api.models import ModelSource

HEAD_ARCHITECTURE: Final = "LlamaForCausalLM"
"""Architecture of published heads' layers."""


def find_checkpoint(
    config: EngineConfig, settings: SpeculativeConfig, registry: Registry
) -> ModelSource:
    """Return the source of `model`. Raises `ConfigError` if no plugin finds it."""
    # Heads name all kinds of architectures, or none. The method decides how to read them.
    own = replace(
        config.model, model=settings.model, revision=settings.revision or None, quantization=None
    )
    own = replace(own, hf_overrides={"architectures": [HEAD_ARCHITECTURE]})
    found: ModelSource | None = registry.find_model(settings.model, replace(config, model=own))
    if found is None:
        raise ConfigError(f"--speculative-config.model: no plugin finds {settings.model!r}.")
    return found
