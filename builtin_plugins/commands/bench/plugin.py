"""`engine bench`: the command."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    return [
        Entry(
            "bench",
            "builtin_plugins.commands.bench.command:Bench",
            "measure throughput, latency, serving",
        )
    ]
