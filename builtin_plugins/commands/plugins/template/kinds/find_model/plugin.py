"""Entries of acme: model names such as `acme:echo`."""

from __future__ import annotations

from core.api import EngineConfig, hookimpl
from core.api.models import ModelSource

PREFIX = "acme:"
EXAMPLE_MODELS = ("acme:echo",)
"""Model names tested by the conformance suite."""


@hookimpl
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | str | None:
    """Return the replacement for a name that begins with `acme:`; None for other names.

    May also return a `ModelSource`: what the model is, and where its files are.
    """
    return "scripted:" if model.startswith(PREFIX) else None
