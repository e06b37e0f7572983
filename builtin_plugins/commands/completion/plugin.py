"""`engine completion`."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.commands.completion.command:Completion"
    return [
        Entry(
            "completion",
            target,
            "complete commands and flags in bash, zsh and fish",
            requires=("shtab",),
        )
    ]
