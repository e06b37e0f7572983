"""Writes lock files: the exact set of plugins that `--plugins-lock` takes, and what is in their
files.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from core.hashes import files_of
from core.plugin import PluginPlan, PluginRef


def write_lock(plan: PluginPlan) -> bytes:
    """Return the content of the lock file of a plan, one plugin and one file per line."""
    targets: dict[str, list[str]] = {}
    for ref in plan.plugins:
        if ref.distribution:
            targets.setdefault(ref.distribution, []).append(ref.target)
    locked = msgspec.structs.replace(
        plan,
        plugins=tuple(_portable(ref) for ref in plan.plugins),
        files={name: files_of(name, modules) for name, modules in targets.items()},
    )
    return msgspec.json.format(msgspec.json.encode(locked), indent=1) + b"\n"


def _portable(ref: PluginRef) -> PluginRef:
    """A local file's folder is no part of a lock; its content is."""
    return msgspec.structs.replace(ref, target=Path(ref.target).name) if ref.is_file else ref
