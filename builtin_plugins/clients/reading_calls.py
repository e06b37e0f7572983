"""Calls that only read the state of engines, and need not wait for one that restarts."""

from __future__ import annotations

from core.api import Registry


def reading_calls(registry: Registry) -> set[str]:
    """Return the names of calls that only read; routes add their own.

    With several engines, one that is not ready answers them with an error at once. After other
    calls, the engine's process looks for new weights.
    """
    names: set[str] = registry.shared("reading_calls", set)
    return names
