"""Models in the Hugging Face layout: a local folder, or the id of a repository on the hub."""

from __future__ import annotations

from core.api import EngineConfig, ModelSource, hookimpl


@hookimpl(trylast=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Recognise folders and anything that is spelt like a hub id."""
    from builtin_plugins.model_sources.huggingface.source import (
        find,
    )  # lazy: only when a model is asked for

    return find(model, config)
