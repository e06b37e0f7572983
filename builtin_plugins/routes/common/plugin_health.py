"""Health of every loaded plugin: its faults in all processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Faults = Mapping[str, Sequence[Any]]
"""Number of exceptions and the last one's text, by plugin."""


def plugin_health(
    loaded: Sequence[Any], sinks: Sequence[Any], faults: Iterable[Faults]
) -> list[dict[str, Any]]:
    """Return one object per loaded plugin, in load order.

    `faults` are the faults of each process, including those of its metric sinks.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for process in faults:
        for name, (count, error) in process.items():
            found.setdefault(name, []).append((count, error))
    plugins = []
    for ref in loaded:
        faulty = [entry for entry in sinks if entry.owner == str(ref) and entry.faults]
        known = found.get(ref.name)
        if not known:
            known = [(entry.faults, str(entry.last_error)) for entry in faulty]
        plugins.append(
            {
                "name": ref.name,
                "origin": ref.origin,
                "builtin": ref.builtin,
                "faults": sum(count for count, _ in known),
                "stopped": any(entry.quarantined for entry in faulty),
                "error": known[-1][1] if known else None,
            }
        )
    return plugins
