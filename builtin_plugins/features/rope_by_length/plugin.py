"""Both halves of the feature, for models with rotary factors that depend on the length."""

from __future__ import annotations

from functools import partial
from typing import Any

from core.api import EngineConfig, Registry, hookimpl


@hookimpl(trylast=True)  # a journal records the calls of its scheduler
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    short_context = _short_context(config, registry)
    if not short_context:
        return []
    # Imported lazily for a fast start.
    from builtin_plugins.features.rope_by_length.scheduling import LengthTracker

    return [LengthTracker(short_context)]


@hookimpl(trylast=True)  # others read the positions of the step before they are shifted
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not _short_context(config, registry):
        return []
    # Imported lazily: only workers need torch.
    from builtin_plugins.features.rope_by_length.worker import PositionShift

    return [PositionShift()]


def _short_context(config: EngineConfig, registry: Registry) -> int:
    """Return the longest context with factors of its own; 0 if one table serves all lengths."""
    found: int = registry.shared(
        "rope_by_length.short_context", partial(_read_short_context, config, registry)
    )
    return found


def _read_short_context(config: EngineConfig, registry: Registry) -> int:
    from core.models.layers.loading import read_model  # lazy: torch is slow to import

    source = registry.find_model(config.model.model, config)
    if source is None:
        return 0
    spec, _ = read_model(config, source, registry)
    attentions = [layer.attention for layer in getattr(spec, "layers", ())]
    ropes = [getattr(attention, "rope", None) for attention in attentions]
    contexts = [rope.short_context for rope in ropes if rope is not None]
    shortest = min((context for context in contexts if context), default=0)
    served = getattr(spec, "max_positions", 0)
    return shortest if shortest < served else 0
