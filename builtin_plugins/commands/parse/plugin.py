"""`engine parse`: shows how model text is parsed."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "parse",
            "builtin_plugins.commands.parse.command:Parse",
            "show what a client would see of a model's text",
        )
    ]
