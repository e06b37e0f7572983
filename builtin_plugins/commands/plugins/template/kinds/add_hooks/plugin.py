"""Entries of acme: a hook for other plugins, and a command that calls it."""

from __future__ import annotations

from typing import Any

from core.api import Entry, hookimpl


@hookimpl
def engine_add_hooks() -> list[Any]:
    """Return the modules with hook specifications; names begin with `engine_`."""
    from engine_acme import hooks  # lazy: keeps the plugin module light

    return [hooks]


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    return [Entry("acme", "engine_acme.command:Acme", "prints words of plugins")]
