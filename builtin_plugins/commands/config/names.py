"""Checks settings of the kernel that name entries of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "attention_backend": ("attention", "attention_backends"),
    "device": ("device", "platforms"),
    "distributed_executor_backend": ("parallel", "executors"),
    "load_format": ("load", "weight_loaders"),
    "quantization": ("model", "quant_methods"),
    "runner": ("model", "runners"),
    "scheduling_policy": ("scheduler", "scheduling_policies"),
    "tokenizer_mode": ("model", "tokenizers"),
}
"""Section and kind by setting."""
AUTO: Final = ("auto", "", None)


def check_names(config: EngineConfig, registry: Registry) -> None:
    """Raise `ConfigError` for a name that no entry has; an entry's aliases are in what it gives."""
    for setting, (section, kind) in KINDS.items():
        name = getattr(getattr(config, section), setting)
        entries = registry.entries(kind)
        if name in AUTO or not entries:
            continue
        if not any(name == each.entry.name or name in each.entry.gives for each in entries):
            registry.choose(kind, name)  # raises with the names there are
