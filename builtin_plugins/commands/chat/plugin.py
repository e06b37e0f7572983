"""`engine chat` and `engine complete`: interactive clients of a running server."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return both entries."""
    return [
        Entry(
            "chat",
            "builtin_plugins.commands.chat.command:Chat",
            "talk with a model of a running server",
        ),
        Entry(
            "complete",
            "builtin_plugins.commands.chat.command:Complete",
            "let a running server complete texts",
        ),
    ]
