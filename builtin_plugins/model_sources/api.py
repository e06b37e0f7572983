"""Public API of model sources: hub downloads, and untrusted settings files and their patterns."""

from builtin_plugins.model_sources.huggingface.hub import download, is_hub_id
from builtin_plugins.model_sources.patterns import Pattern
from builtin_plugins.model_sources.settings_file import (
    read_settings_json,
    read_settings_object,
    read_settings_text,
)

__all__ = [
    "Pattern",
    "download",
    "is_hub_id",
    "read_settings_json",
    "read_settings_object",
    "read_settings_text",
]
