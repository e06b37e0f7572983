"""Public API for readers of safetensors files in other plugins; as stable as `core.api`."""

from builtin_plugins.weight_loaders.safetensors.json_header import read_header

__all__ = ["read_header"]
