"""`engine plugins`: runs before other plugins are loaded, so that it can examine broken ones."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.commands.plugins.command:PluginsCommand"
    return [Entry("plugins", target, "list, show, explain, check, lock and write plugins")]
