"""Finds the folder that `model` of `--speculative-config` names, which holds no model that could be
served.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError

if TYPE_CHECKING:
    from core.api import EngineConfig, ModelSource, SpeculativeConfig

LAYERS: Final = "LlamaForCausalLM"
"""What layers of published heads are built like."""


def find_checkpoint(
    config: EngineConfig, settings: SpeculativeConfig, registry: Any
) -> ModelSource:
    """Return what `model` names. Raises `ConfigError` where no plugin finds it."""
    # Config files of heads name architectures of many kinds, or none; what they are, the method
    # says.
    own = replace(
        config.model, model=settings.model, revision=settings.revision or None, quantization=None
    )
    own = replace(own, hf_overrides={"architectures": [LAYERS]})
    found: ModelSource | None = registry.find_model(settings.model, replace(config, model=own))
    if found is None:
        raise ConfigError(f"--speculative-config.model: no plugin finds {settings.model!r}.")
    return found
