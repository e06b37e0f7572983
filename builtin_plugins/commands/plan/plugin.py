"""`engine plan`: checks in about a second whether a model fits, from config and weight headers."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "plan",
            "builtin_plugins.commands.plan.command:Plan",
            "say whether a model will fit, how often, and how fast",
        )
    ]
