"""Public API of model sources: hub downloads, untrusted settings files, the demo model's tower."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.model_sources.huggingface.hub import (
    SETTINGS,
    WEIGHTS,
    check_cache,
    download,
    is_hub_id,
    list_downloads,
)
from builtin_plugins.model_sources.patterns import Pattern
from builtin_plugins.model_sources.settings_file import (
    read_settings_json,
    read_settings_object,
    read_settings_text,
)

if TYPE_CHECKING:
    from builtin_plugins.model_sources.demo.tower import LabelTower, TowerSizes, tower_tensors

__all__ = [
    "SETTINGS",
    "WEIGHTS",
    "LabelTower",
    "Pattern",
    "TowerSizes",
    "check_cache",
    "download",
    "is_hub_id",
    "list_downloads",
    "read_settings_json",
    "read_settings_object",
    "read_settings_text",
    "tower_tensors",
]

TOWER: Final = ("LabelTower", "TowerSizes", "tower_tensors")
"""Names of the demo's tower, which imports torch: only its training needs them."""


def __getattr__(name: str) -> Any:
    if name not in TOWER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("builtin_plugins.model_sources.demo.tower"), name)
