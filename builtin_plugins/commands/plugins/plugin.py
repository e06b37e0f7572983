"""`engine plugins`: runs before any other plugin is loaded, so that broken ones can be examined."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    target = "builtin_plugins.commands.plugins.command:PluginsCommand"
    return [Entry("plugins", target, "list, show, explain, check, lock and write plugins")]
