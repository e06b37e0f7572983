"""What a name needs that users know from other engines and no loaded plugin
provides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contracts.registry import Registry


def missing_entry(registry: Registry, kind: str, name: str) -> str:
    """Return what the name of this kind is and needs; empty for an unknown
    name.
    """
    for _, texts in registry.call_hook("engine_missing_entries"):
        if text := texts.get(f"{kind}:{name}"):
            return str(text)
    return ""
