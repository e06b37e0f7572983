"""What acme brings: names of models, such as `acme:echo`."""

from __future__ import annotations

from core.api import EngineConfig, ModelSource, hookimpl

PREFIX = "acme:"
EXAMPLE_MODELS = ("acme:echo",)
"""Names that it knows: the conformance suite asks for them."""


@hookimpl
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | str | None:
    """Return another name for one that begins with `acme:`, which is asked for instead; None for
    what is not ours.

    A `ModelSource` may be returned as well: what the model is, and where its files are.
    """
    return "scripted:" if model.startswith(PREFIX) else None
