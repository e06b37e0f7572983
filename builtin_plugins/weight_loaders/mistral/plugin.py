"""Weights with Mistral's own names (consolidated*.safetensors)."""

from core.api import Entry, hookimpl


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the loader."""
    target = "builtin_plugins.weight_loaders.mistral.loader:MistralLoader"
    return [Entry("mistral", target, "safetensors files with the names of Mistral's own format")]
