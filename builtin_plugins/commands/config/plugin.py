"""`engine config`: the effective configuration, and the reference of all settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import Entry, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    target = "builtin_plugins.commands.config.command:ConfigCommand"
    return [Entry("config", target, "print the effective configuration and where it came from")]


@hookimpl
def engine_add_hooks() -> list[Any]:
    from builtin_plugins.commands.config import hookspecs  # lazy: called once

    return [hookspecs]


@hookimpl
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    from builtin_plugins.commands.config.names import check_names  # lazy: one command needs it

    check_names(config, registry)
