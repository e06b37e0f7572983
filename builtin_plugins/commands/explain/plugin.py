"""`engine explain REQUEST_ID`: says why a request of a running server waits or ended."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "explain",
            "builtin_plugins.commands.explain.command:Explain",
            "say why a request waits, and where its time went",
        )
    ]
