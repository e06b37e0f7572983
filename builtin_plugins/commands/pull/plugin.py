"""`engine pull`."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.commands.pull.command:Pull"
    return [Entry("pull", target, "download models from the hub ahead of time")]
