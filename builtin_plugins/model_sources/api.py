"""Public API of model sources: hub downloads, and patterns of untrusted configs."""

from builtin_plugins.model_sources.huggingface.hub import download, is_hub_id
from builtin_plugins.model_sources.patterns import Pattern

__all__ = ["Pattern", "download", "is_hub_id"]
