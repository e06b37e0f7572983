"""`engine config`: the effective configuration, and the reference of all settings."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    target = "builtin_plugins.commands.config.command:ConfigCommand"
    return [Entry("config", target, "print the effective configuration and where it came from")]
