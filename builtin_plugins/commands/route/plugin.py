"""`engine route`: the command."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [
        Entry(
            "route",
            "builtin_plugins.commands.route.command:Route",
            "route requests to running servers",
        )
    ]
