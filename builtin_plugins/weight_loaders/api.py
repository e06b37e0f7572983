"""Public API for readers of safetensors files in other plugins; as stable as `core.api`."""

from builtin_plugins.weight_loaders.safetensors.json_header import read_header
from builtin_plugins.weight_loaders.safetensors.regular_file import open_regular

__all__ = ["open_regular", "read_header"]
