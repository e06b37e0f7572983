"""`engine tune`."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.commands.tune.command:Tune"
    return [Entry("tune", target, "measure this machine and write a configuration for a model")]
