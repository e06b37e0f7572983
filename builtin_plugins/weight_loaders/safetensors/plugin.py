"""Weights from safetensors files, memory-mapped."""

from core.api import Entry, hookimpl


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the loader."""
    target = "builtin_plugins.weight_loaders.safetensors.loader:SafetensorsLoader"
    return [Entry("safetensors", target, "safetensors files, memory-mapped, one or many")]
