"""Models in the Hugging Face layout: a local folder, or the id of a repository on the hub."""

from __future__ import annotations

from core.api import EngineConfig, hookimpl
from core.api.models import ModelSource


@hookimpl(trylast=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Return the source of a local folder or a hub id."""
    from builtin_plugins.model_sources.huggingface.source import (
        find,
    )  # lazy: only when a model is looked up

    return find(model, config)
