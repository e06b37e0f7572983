"""Every loaded plugin with what is known against it, as operators see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Faults = Mapping[str, Sequence[Any]]
"""By plugin: how often it has raised something, and the last exception in words."""


def plugin_health(
    loaded: Sequence[Any], sinks: Sequence[Any], faults: Iterable[Faults]
) -> list[dict[str, Any]]:
    """Return the plugins in their order; `faults` has those of each process, what sinks of its have
    raised included.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for process in faults:
        for name, (count, error) in process.items():
            found.setdefault(name, []).append((count, error))
    shown = []
    for ref in loaded:
        ill = [guarded for guarded in sinks if guarded.owner == str(ref) and guarded.faults]
        known = found.get(ref.name) or [
            (guarded.faults, str(guarded.last_error)) for guarded in ill
        ]
        shown.append(
            {
                "name": ref.name,
                "origin": ref.origin,
                "builtin": ref.builtin,
                "faults": sum(count for count, _ in known),
                "stopped": any(guarded.quarantined for guarded in ill),
                "error": known[-1][1] if known else None,
            }
        )
    return shown
