"""What acme brings: a hook that other plugins implement, and a command that asks it."""

from __future__ import annotations

from typing import Any

from core.api import Entry, hookimpl


@hookimpl
def engine_add_hooks() -> list[Any]:
    """Return what has the specifications; their names begin with `engine_`."""
    from engine_acme import hooks  # lazy: a plugin's module imports nothing that it need not

    return [hooks]


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    return [Entry("acme", "engine_acme.command:Acme", "prints the words that plugins bring")]
