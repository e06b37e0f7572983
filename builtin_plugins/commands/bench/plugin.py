"""`engine bench`: throughput, latency, serving, start-up, and what the engine itself costs in a
step.
"""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [
        Entry(
            "bench",
            "builtin_plugins.commands.bench.command:Bench",
            "measure throughput, latency, serving",
        )
    ]
