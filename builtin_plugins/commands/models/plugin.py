"""`engine models`."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.commands.models.command:Models"
    return [Entry("models", target, "list the architectures that are served, and how")]
