"""`engine plan`: whether a model will fit, said in a second, from its config and the headers of its
weights.
"""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [
        Entry(
            "plan",
            "builtin_plugins.commands.plan.command:Plan",
            "say whether a model will fit, and how often",
        )
    ]
