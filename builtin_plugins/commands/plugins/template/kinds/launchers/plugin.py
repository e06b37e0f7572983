"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_launchers() -> list[Entry]:
    """Return the entry: `--launcher acme`."""
    target = "engine_acme.launcher:Acme"
    return [Entry("acme", target, "processes of this machine, with few malloc arenas")]
